// The contrast (WCAG 2.2) of every piece of text that is visible, against what lies behind it: in what `area` selects,
// or where that is null in a notebook's outputs.
area => {
    const brush = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgba = colour => {
        brush.clearRect(0, 0, 1, 1);
        brush.fillStyle = colour;
        brush.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = brush.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = (top, below, alpha) => below.map((value, i) => top[i] * alpha + value * (1 - alpha));
    const luminance = rgb => rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const contrast = element => {
        const line = [];
        for (let e = element; e; e = e.parentElement) line.unshift(getComputedStyle(e));
        const opacity = line.reduce((product, style) => product * style.opacity, 1);
        const layers = line.map(style => rgba(style.backgroundColor));
        const behind = layers.reduce((below, layer) => over(layer, below, layer[3]), [255, 255, 255]);
        const colour = rgba(getComputedStyle(element).color);
        const [a, b] = [luminance(over(colour, behind, colour[3] * opacity)), luminance(behind)];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    };
    const found = [];
    for (const output of document.querySelectorAll(area ?? '.jp-Notebook .jp-OutputArea-output')) {
        const walker = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
        for (let node; node = walker.nextNode();) {
            const element = node.parentElement;
            if (node.data.trim() && element.getClientRects().length && element.tagName !== 'STYLE')
                found.push([node.data.trim().slice(0, 60), contrast(element)]);
        }
    }
    return found;
}
