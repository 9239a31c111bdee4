"""The few small models that lessons share.

Shape suffixes, the project's one legend: B batch, C channels, H and W pixels, N classes, F features of an image,
T tokens, V vocabulary, D model width, K heads, P width of one head.

Weights are drawn from torch's global generator: seed it first, and the model is the same each time.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

Mask = Bool[Tensor, "B T T"] | None


def count_parameters(model: nn.Module) -> int:
    """Parameters of the model that training changes, shared ones counted once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch-norm and a path around them; a stride of two halves height and width."""

    def __init__(self, c_in: int, c_out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(c_out)
        self.around = nn.Identity() if c_in == c_out else nn.Conv2d(c_in, c_out, 1, stride, bias=False)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        """Feature maps, as many and as large as the block was made for."""
        y = functional.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return functional.relu(y + self.around(x))


class ResNet(nn.Module):
    """A residual network that takes images of any size from 16 pixels up: it averages over positions at the end."""

    def __init__(self, n_classes: int, width: int):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(
            ResidualBlock(width, width, stride=1),
            ResidualBlock(width, 2 * width, stride=2),
            ResidualBlock(2 * width, 4 * width, stride=2),
        )
        self.head = nn.Linear(4 * width, n_classes)

    def forward(self, x_BCHW: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N"]:
        """Logits of images."""
        x_BCHW = functional.relu(self.norm(self.stem(x_BCHW)))
        x_BCHW = self.blocks(x_BCHW)
        x_BF = x_BCHW.mean(dim=(2, 3))
        return self.head(x_BF)


def resnet(n_classes: int = 32, width: int = 24) -> ResNet:
    """A batch-norm ResNet for grey images of 16 pixels or more; about 176,000 parameters at width 24.

    Source: He et al., Deep residual learning (CVPR 2016), the CIFAR form of section 4.2, made smaller.
    """
    return ResNet(n_classes, width)


def convnet(gain: float = 1.0, n_classes: int = 32, size: int = 24) -> nn.Sequential:
    """Three strided convolutions and a 128-wide layer on size x size grey images: no normalisation, no residual path.

    gain multiplies every weight of He's initialisation: 1 keeps the signal's scale through the layers, more raises it.
    Source: He et al., Delving deep into rectifiers (ICCV 2015), section 2.2.
    """
    side = -(-size // 8)  # each stride of two halves the side and rounds up
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU()),
        nn.Flatten(),
        *(nn.Linear(64 * side * side, 128), nn.ReLU()),
        nn.Linear(128, n_classes),
    )
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
            with torch.no_grad():
                layer.weight *= gain
    return model


class Attention(nn.Module):
    """Self-attention: each token mixes the values of itself and the tokens before it, or of those a mask allows."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)

    def forward(self, x_BTD: Float[Tensor, "B T D"], mask_BTT: Mask = None) -> Float[Tensor, "B T D"]:
        """Tokens mixed with those before them, or with those that the mask says, in the same shape."""
        qkv_BTKP = (part.unflatten(-1, (self.heads, -1)) for part in self.to_qkv(x_BTD).chunk(3, dim=-1))
        q_BKTP, k_BKTP, v_BKTP = (part_BTKP.transpose(1, 2) for part_BTKP in qkv_BTKP)
        which = {"is_causal": True} if mask_BTT is None else {"attn_mask": mask_BTT.unsqueeze(1)}
        mixed_BKTP = functional.scaled_dot_product_attention(q_BKTP, k_BKTP, v_BKTP, **which)
        return self.to_out(mixed_BKTP.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then a two-layer network, each on a residual path that is normalised before or after."""

    def __init__(self, width: int, heads: int, norm: str):
        super().__init__()
        self.norm_first = norm == "pre"
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x_BTD: Float[Tensor, "B T D"], mask_BTT: Mask = None) -> Float[Tensor, "B T D"]:
        """Tokens after attention and the two-layer network, in the same shape."""
        if self.norm_first:
            x_BTD = x_BTD + self.attention(self.norm1(x_BTD), mask_BTT)
            return x_BTD + self.mlp(self.norm2(x_BTD))
        x_BTD = self.norm1(x_BTD + self.attention(x_BTD, mask_BTT))
        return self.norm2(x_BTD + self.mlp(x_BTD))


class Gpt(nn.Module):
    """A decoder: token and position embeddings, blocks, and the logits of each next token."""

    def __init__(self, vocab: int, width: int, heads: int, layers: int, context: int, norm: str):
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, norm) for _ in range(layers)))
        self.norm = nn.LayerNorm(width) if norm == "pre" else nn.Identity()  # post-norm blocks end normalised
        self.head = nn.Linear(width, vocab)

    def forward(
        self, tokens_BT: Int[Tensor, "B T"], positions_BT: Int[Tensor, "B T"] | None = None, mask_BTT: Mask = None
    ) -> Float[Tensor, "B T V"]:
        """Logits of the token after each token.

        positions_BT: each token's place in its document, by default in its row. mask_BTT: True where the token of a
        row may see that of a column, by default all tokens before it and itself.
        """
        whole_row = positions_BT is None
        x_BTD = self.token(tokens_BT)
        x_BTD = x_BTD + (self.position.weight[: tokens_BT.shape[1]] if whole_row else self.position(positions_BT))
        for block in self.blocks:
            x_BTD = block(x_BTD, mask_BTT)
        return self.head(self.norm(x_BTD))


def gpt(
    *, vocab: int, norm: str = "pre", width: int = 64, heads: int = 4, layers: int = 6, context: int = 64
) -> Gpt:
    """A small decoder-only transformer, normalised before ("pre") or after ("post") each residual sum.

    Linear layers start as the first transformers' did, from Glorot's uniform distribution with biases at zero.
    ValueError: a norm other than these two, or heads that do not divide the width.
    Source: Xiong et al., On layer normalization in the transformer architecture (ICML 2020), figure 1.
    """
    if norm not in ("pre", "post"):
        raise ValueError(f'norm is "pre" or "post", not {norm!r}')
    if width % heads:
        raise ValueError(f"{heads} heads do not divide a width of {width}")
    model = Gpt(vocab, width, heads, layers, context, norm)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model
