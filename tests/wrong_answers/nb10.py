"""Wrong answers that learners of lesson 10 would give, each with a part of the message that must meet it."""

from statistics import median

import torch

from labkit import cost, live, lm
from labkit.architecture import active, count, parameters, weights
from labkit.estimate import estimate
from labkit.states import Plan


def counts_the_warmup(n_parameters, n_tokens, seconds, n_warmup, n_cards, peak_flops_per_s):
    return 6 * n_parameters * n_tokens * len(seconds) / sum(seconds) / (n_cards * peak_flops_per_s)


def one_cards_peak(n_parameters, n_tokens, seconds, n_warmup, n_cards, peak_flops_per_s):
    kept = seconds[n_warmup:]
    return 6 * n_parameters * n_tokens * len(kept) / sum(kept) / peak_flops_per_s


def tokens_of_each_card(n_parameters, n_tokens, seconds, n_warmup, n_cards, peak_flops_per_s):
    kept = seconds[n_warmup:]
    return 6 * n_parameters * n_tokens * n_cards * len(kept) / sum(kept) / (n_cards * peak_flops_per_s)


def mean_of_rates(n_parameters, n_tokens, seconds, n_warmup, n_cards, peak_flops_per_s):
    rates = [6 * n_parameters * n_tokens / s / (n_cards * peak_flops_per_s) for s in seconds[n_warmup:]]
    return sum(rates) / len(rates)


def middle_step(n_parameters, n_tokens, seconds, n_warmup, n_cards, peak_flops_per_s):
    return 6 * n_parameters * n_tokens / median(seconds[n_warmup:]) / (n_cards * peak_flops_per_s)


def quickest_step(n_parameters, n_tokens, seconds, n_warmup, n_cards, peak_flops_per_s):
    return 6 * n_parameters * n_tokens / min(seconds[n_warmup:]) / (n_cards * peak_flops_per_s)


def forward_alone(n_parameters, n_tokens, seconds, n_warmup, n_cards, peak_flops_per_s):
    kept = seconds[n_warmup:]
    return 2 * n_parameters * n_tokens * len(kept) / sum(kept) / (n_cards * peak_flops_per_s)


def one_steps_tokens(n_parameters, n_tokens, seconds, n_warmup, n_cards, peak_flops_per_s):
    return 6 * n_parameters * n_tokens / sum(seconds[n_warmup:]) / (n_cards * peak_flops_per_s)


def in_per_cent(n_parameters, n_tokens, seconds, n_warmup, n_cards, peak_flops_per_s):
    kept = seconds[n_warmup:]
    return 100 * 6 * n_parameters * n_tokens * len(kept) / sum(kept) / (n_cards * peak_flops_per_s)


def eats_the_warmup(n_parameters, n_tokens, seconds, n_warmup, n_cards, peak_flops_per_s):
    del seconds[:n_warmup]
    return 6 * n_parameters * n_tokens * len(seconds) / sum(seconds) / (n_cards * peak_flops_per_s)


def six_n_d(arch, batch, seq):
    return 6 * count(arch) * batch * seq


def met_by_a_token(arch, all_experts=False, biases=False, tied=True, looked_up=(), skipped=()):
    """What a token multiplies with, right or with one thing wrong."""
    met = arch.vocab * arch.width if arch.tied and tied else 0
    for weight in weights(arch):
        if weight.part in {"embedding", "positions", *skipped} - set(looked_up) or len(weight.shape) < 2 and not biases:
            continue
        slept = arch.experts and weight.part == "mlp" and not all_experts
        met += weight.total * arch.experts_per_token // arch.experts if slept else weight.total
    return met


def pairs(arch, seq):
    return 2 * arch.layers * arch.heads * arch.head_width * seq


def without_backward(arch, batch, seq):
    return 2 * batch * seq * (met_by_a_token(arch) + pairs(arch, seq))


def backward_once(arch, batch, seq):
    return 4 * batch * seq * (met_by_a_token(arch) + pairs(arch, seq))


def without_attention(arch, batch, seq):
    return 6 * batch * seq * met_by_a_token(arch)


def half_of_the_pairs(arch, batch, seq):
    return 6 * batch * seq * (met_by_a_token(arch) + pairs(arch, seq) // 2)


def pairs_by_width(arch, batch, seq):
    return 6 * batch * seq * (met_by_a_token(arch) + 2 * arch.layers * arch.width * seq)


def pairs_of_groups(arch, batch, seq):
    return 6 * batch * seq * (met_by_a_token(arch) + 2 * arch.layers * arch.kv_heads * arch.head_width * seq)


def without_tied_head(arch, batch, seq):
    return 6 * batch * seq * (met_by_a_token(arch, tied=False) + pairs(arch, seq))


def embedding_multiplies(arch, batch, seq):
    return 6 * batch * seq * (met_by_a_token(arch, looked_up=("embedding",)) + pairs(arch, seq))


def untied_embedding_multiplies(arch, batch, seq):
    looked_up = () if arch.tied else ("embedding",)
    return 6 * batch * seq * (met_by_a_token(arch, looked_up=looked_up) + pairs(arch, seq))


def positions_multiply(arch, batch, seq):
    return 6 * batch * seq * (met_by_a_token(arch, looked_up=("positions",)) + pairs(arch, seq))


def all_experts(arch, batch, seq):
    return 6 * batch * seq * (met_by_a_token(arch, all_experts=True) + pairs(arch, seq))


def with_biases(arch, batch, seq):
    return 6 * batch * seq * (met_by_a_token(arch, biases=True) + pairs(arch, seq))


def active_less_looked_up(arch, batch, seq):
    parts = parameters(arch)
    looked_up = parts["positions"] + (0 if arch.tied else parts["embedding"])
    return 6 * batch * seq * (active(arch) - looked_up + pairs(arch, seq))


def one_sequence(arch, batch, seq):
    return 6 * seq * (met_by_a_token(arch) + pairs(arch, seq))


def pairs_across_sequences(arch, batch, seq):
    return 6 * batch * seq * (met_by_a_token(arch) + pairs(arch, batch * seq))


def without_router(arch, batch, seq):
    return 6 * batch * seq * (met_by_a_token(arch, skipped=("router",)) + pairs(arch, seq))


def biases_and_no_norms(arch, batch, seq):
    return 6 * batch * seq * (met_by_a_token(arch, biases=True, skipped=("norms",)) + pairs(arch, seq))


def shapes_of_one_layer(arch, batch, seq):
    met = arch.vocab * arch.width if arch.tied else 0
    for weight in weights(arch):
        if weight.part not in ("embedding", "positions") and len(weight.shape) == 2:
            met += weight.shape[0] * weight.shape[1]
    return 6 * batch * seq * (met + pairs(arch, seq))


def router_as_an_expert(arch, batch, seq):
    router = parameters(arch)["router"]
    slept = router // arch.experts * (arch.experts - arch.experts_per_token) if arch.experts else 0
    return 6 * batch * seq * (met_by_a_token(arch) - slept + pairs(arch, seq))


def one_expert_met(arch, batch, seq):
    others = parameters(arch)["mlp"] // arch.experts * (arch.experts_per_token - 1) if arch.experts else 0
    return 6 * batch * seq * (met_by_a_token(arch) - others + pairs(arch, seq))


def attention_forward_alone(arch, batch, seq):
    return batch * seq * (6 * met_by_a_token(arch) + 2 * pairs(arch, seq))


def pairs_not_squared(arch, batch, seq):
    return 6 * batch * seq * (met_by_a_token(arch) + pairs(arch, 1))


def no_pairs_and_no_tied_head(arch, batch, seq):
    return 6 * batch * seq * met_by_a_token(arch, tied=False)


def the_courses_count(arch, batch, seq):
    return cost.step_flops(arch, batch=batch, seq=seq)


def napkin(arch, batch, seq, attention, recompute, widths=16, again=1, scores=1, copies=3, moments=(5, 3)):
    """The napkin, with other numbers in it."""
    tokens = batch * seq
    block = widths * arch.width + (scores * arch.heads * seq if attention == "math" else 0)
    kept = arch.layers * tokens * (again * arch.width if recompute == "full" else block)
    return 4 * max(moments[0] * count(arch), moments[1] * count(arch) + kept + copies * tokens * arch.vocab)


def twelve_widths(*given):
    return napkin(*given, widths=12)


def fourteen_widths(*given):
    return napkin(*given, widths=14)


def fifteen_widths(*given):
    return napkin(*given, widths=15)


def eighteen_widths(*given):
    return napkin(*given, widths=18)


def recomputed_keeps_nothing(*given):
    return napkin(*given, again=0)


def recomputed_keeps_two(*given):
    return napkin(*given, again=2)


def two_score_arrays(*given):
    return napkin(*given, scores=2)


def four_logits(*given):
    return napkin(*given, copies=4)


def gradients_too_early(*given):
    return napkin(*given, moments=(5, 4))


def scores_though_recomputed(arch, batch, seq, attention, recompute):
    scores = arch.layers * batch * seq * arch.heads * seq if (attention, recompute) == ("math", "full") else 0
    n, logits = count(arch), batch * seq * arch.vocab
    return 4 * max(5 * n, 3 * n + kept_by_blocks(arch, batch, seq, attention, recompute) + scores + 3 * logits)


def truthy_recompute(arch, batch, seq, attention, recompute):
    return napkin(arch, batch, seq, attention, "full" if recompute else "none")


def the_courses_estimate(arch, batch, seq, attention, recompute):
    plan = Plan(precision="fp32", batch=batch, seq=seq, recompute=recompute, attention=attention)
    return estimate(arch, plan, overhead=False).total_bytes


def kept_by_blocks(arch, batch, seq, attention, recompute):
    scores = arch.heads * seq if attention == "math" else 0
    each = arch.width if recompute == "full" else 16 * arch.width + scores
    return arch.layers * batch * seq * each


def four_times(arch, batch, seq, attention, recompute):
    return 16 * count(arch)


def no_scratch(arch, batch, seq, attention, recompute):
    logits = batch * seq * arch.vocab
    return 4 * max(
        4 * count(arch), 3 * count(arch) + kept_by_blocks(arch, batch, seq, attention, recompute) + 3 * logits
    )


def no_logits(arch, batch, seq, attention, recompute):
    return 4 * max(5 * count(arch), 3 * count(arch) + kept_by_blocks(arch, batch, seq, attention, recompute))


def logits_once(arch, batch, seq, attention, recompute):
    logits = batch * seq * arch.vocab
    return 4 * max(5 * count(arch), 3 * count(arch) + kept_by_blocks(arch, batch, seq, attention, recompute) + logits)


def never_recomputes(arch, batch, seq, attention, recompute):
    logits, n = batch * seq * arch.vocab, count(arch)
    return 4 * max(5 * n, 3 * n + kept_by_blocks(arch, batch, seq, attention, "none") + 3 * logits)


def always_flash(arch, batch, seq, attention, recompute):
    logits, n = batch * seq * arch.vocab, count(arch)
    return 4 * max(5 * n, 3 * n + kept_by_blocks(arch, batch, seq, "flash", recompute) + 3 * logits)


def scores_of_one_head(arch, batch, seq, attention, recompute):
    logits, n = batch * seq * arch.vocab, count(arch)
    scores = arch.layers * batch * seq * seq if (attention, recompute) == ("math", "none") else 0
    return 4 * max(5 * n, 3 * n + kept_by_blocks(arch, batch, seq, "flash", recompute) + scores + 3 * logits)


def sum_of_moments(arch, batch, seq, attention, recompute):
    logits = batch * seq * arch.vocab
    return 4 * (5 * count(arch) + kept_by_blocks(arch, batch, seq, attention, recompute) + 3 * logits)


def in_numbers(arch, batch, seq, attention, recompute):
    logits, n = batch * seq * arch.vocab, count(arch)
    return max(5 * n, 3 * n + kept_by_blocks(arch, batch, seq, attention, recompute) + 3 * logits)


def measures(arch, batch, seq, attention, recompute):
    with live.fake():
        model = lm.build(arch, attention=attention, recompute=recompute)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        tokens = torch.zeros(batch, seq + 1, dtype=torch.long)
        lm.train_step(model, optimizer, tokens)
        return live.peak(lambda: lm.train_step(model, optimizer, tokens), model, optimizer, tokens).total_bytes


def published_block(arch, batch, seq, attention, recompute):
    """34 bytes a token and width, which is for 16 bits."""
    logits, n = batch * seq * arch.vocab, count(arch)
    return 4 * max(5 * n, 3 * n + 3 * logits) + arch.layers * batch * seq * 34 * arch.width


def chosen(options, n_steps, deadline_h, card_gib, bytes_per_s, price, **wrong):
    """The cheapest, with one thing wrong."""
    good = []
    for o in options:
        k = o["cards"]
        card_bytes = o["state_bytes"] / (k if o["sharded"] or "all_sharded" in wrong else 1)
        card_bytes += o["activation_bytes"] / (k if "split_activations" in wrong else 1)
        card_bytes -= o["activation_bytes"] if "no_activations" in wrong else 0
        ring_s = wrong.get("ring", lambda k: 2 * (k - 1) / k)(k) * o["gradient_bytes"] / bytes_per_s
        work_s = o["work_s"] / (1 if "alone" in wrong else k)
        hours = n_steps * wrong.get("together", lambda work_s, ring_s: work_s + ring_s)(work_s, ring_s) / 3600
        room = card_gib * wrong.get("gib", 2**30)
        fits = card_bytes < room if "less" in wrong else card_bytes <= room
        in_time = hours < deadline_h if "sooner" in wrong else hours <= deadline_h
        if ("any_size" in wrong or fits) and ("any_time" in wrong or in_time):
            cost = hours * price if "one_card" in wrong else hours * k * price
            good.append((*wrong.get("key", lambda cost, hours, k: (cost, hours))(cost, hours, k), o["name"]))
    return min(good)[-1] if good else "none"


def everything_fits(*given):
    return chosen(*given, any_size=True)


def gigabytes(*given):
    return chosen(*given, gib=1e9)


def copies_are_shared(*given):
    return chosen(*given, all_sharded=True)


def activations_are_shared(*given):
    return chosen(*given, split_activations=True)


def no_deadline(*given):
    return chosen(*given, any_time=True)


def k_times_as_fast(*given):
    return chosen(*given, ring=lambda k: 0)


def half_a_ring(*given):
    return chosen(*given, ring=lambda k: (k - 1) / k)


def a_ring_of_one_pass(*given):
    return chosen(*given, ring=lambda k: 1 if k > 1 else 0)


def all_gradients_once(*given):
    return chosen(*given, ring=lambda k: 1)


def all_gradients_twice(*given):
    return chosen(*given, ring=lambda k: 2)


def overlapped(*given):
    return chosen(*given, together=max)


def before_the_deadline(*given):
    return chosen(*given, sooner=True)


def less_than_the_card(*given):
    return chosen(*given, less=True)


def work_is_not_shared(*given):
    return chosen(*given, alone=True)


def without_activations(*given):
    return chosen(*given, no_activations=True)


def writes_into_an_option(options, n_steps, deadline_h, card_gib, bytes_per_s, price):
    for option in options:
        option["cards"] += 1
    return "none"


def a_ring_that_grows(*given):
    return chosen(*given, ring=lambda k: 2 * (k - 1))


def pays_one_card(*given):
    return chosen(*given, one_card=True)


def the_quickest(*given):
    return chosen(*given, key=lambda cost, hours, k: (hours,))


def the_fewest_cards(*given):
    return chosen(*given, key=lambda cost, hours, k: (k, hours))


def the_first_of_equals(options, n_steps, deadline_h, card_gib, bytes_per_s, price):
    order = {o["name"]: i for i, o in enumerate(options)}
    best = chosen(options, n_steps, deadline_h, card_gib, bytes_per_s, price)
    ties = [
        name
        for name in order
        if best != "none"
        and chosen([o for o in options if o["name"] == name], n_steps, deadline_h, card_gib, bytes_per_s, price)
        != "none"
        and _cost(options, name, n_steps, bytes_per_s) == _cost(options, best, n_steps, bytes_per_s)
    ]
    return min(ties, key=order.get) if ties else "none"


def _cost(options, name, n_steps, bytes_per_s):
    o = next(o for o in options if o["name"] == name)
    ring_s = 2 * (o["cards"] - 1) / o["cards"] * o["gradient_bytes"] / bytes_per_s
    return n_steps * (o["work_s"] / o["cards"] + ring_s) / 3600 * o["cards"]


def fails_without_one(options, n_steps, deadline_h, card_gib, bytes_per_s, price):
    good = [o for o in options if chosen([o], n_steps, deadline_h, card_gib, bytes_per_s, price) != "none"]
    return min(good, key=lambda o: _cost(options, o["name"], n_steps, bytes_per_s))["name"]


def gives_the_option(options, n_steps, deadline_h, card_gib, bytes_per_s, price):
    name = chosen(options, n_steps, deadline_h, card_gib, bytes_per_s, price)
    return next((o for o in options if o["name"] == name), None)


WRONG = {
    "10.1": [
        ("counts the warm-up", counts_the_warmup, "first n_warmup steps do not count"),
        ("one card's peak", one_cards_peak, "n_cards times the peak of one"),
        ("tokens of each card", tokens_of_each_card, "n_tokens are of all cards already"),
        ("mean of rates", mean_of_rates, "mean of the steps' rates"),
        ("middle step", middle_step, "middle step hides"),
        ("quickest step", quickest_step, "wrong result"),
        ("forward alone", forward_alone, "Two is the forward pass alone"),
        ("one step's tokens", one_steps_tokens, "those of one step"),
        ("in per cent", in_per_cent, "not in per cent"),
        ("eats the warm-up", eats_the_warmup, "changes its input seconds"),
    ],
    "10.2": [
        ("6 N D", six_n_d, "6 N D of all parameters"),
        ("without backward", without_backward, "backward pass is missing"),
        ("backward once", backward_once, "forward pass is missing"),
        ("without the router", without_router, "The router is a matrix, too"),
        ("the router as an expert", router_as_an_expert, "The router is no expert"),
        ("one expert met", one_expert_met, "and not one"),
        ("biases and no norms", biases_and_no_norms, "Biases are added"),
        ("shapes of one layer", shapes_of_one_layer, "[.]total counts all of its kind"),
        ("attention forward alone", attention_forward_alone, "products have a backward pass, too"),
        ("pairs not squared", pairs_not_squared, "seq squared pairs"),
        ("no pairs and no tied head", no_pairs_and_no_tied_head, "replace[(]preset[(]'gpt2'[)], vocab="),
        ("the course's count", the_courses_count, "not in the way asked for(.|\n)*asks labkit[.]cost"),
        ("without attention", without_attention, "which no parameter is part of"),
        ("half of the pairs", half_of_the_pairs, "two products for each pair"),
        ("pairs by width", pairs_by_width, "heads times head_width"),
        ("pairs of groups", pairs_of_groups, "heads, and not kv_heads"),
        ("without the tied head", without_tied_head, "A tied head multiplies"),
        ("the embedding multiplies", embedding_multiplies, "multiplies once, as the head|looked up"),
        ("an untied embedding multiplies", untied_embedding_multiplies, "looked up, and multiplies nothing"),
        ("positions multiply", positions_multiply, "Positions are looked up"),
        ("all experts", all_experts, "experts_per_token of a layer's experts"),
        ("with biases", with_biases, "Biases and norms"),
        ("active parameters", active_less_looked_up, "Biases and norms"),
        ("one sequence", one_sequence, "There are batch sequences"),
        ("pairs across sequences", pairs_across_sequences, "of their own sequence only"),
    ],
    "10.3": [
        ("four times", four_times, "Four times is left"),
        ("no scratch", no_scratch, "AdamW's scratch space"),
        ("no logits", no_logits, "logits are forgotten"),
        ("logits once", logits_once, "and not one"),
        ("never recomputes", never_recomputes, "Recomputation is forgotten"),
        ("always flash", always_flash, "scores of all pairs of tokens, for each head"),
        ("scores of one head", scores_of_one_head, "those of each head, and there are several"),
        ("sum of moments", sum_of_moments, "not their sum"),
        ("in numbers", in_numbers, "four bytes"),
        ("measures", measures, "not in the way asked for(.|\n)*builds the model"),
        ("twelve widths", twelve_widths, "the measured peak; 3% are allowed. Here, with attention='flash'"),
        ("fourteen widths", fourteen_widths, "below the measured peak; 3% are allowed"),
        ("fifteen widths", fifteen_widths, "below the measured peak(.|\n)*what the blocks keep"),
        ("eighteen widths", eighteen_widths, "above the measured peak(.|\n)*what the blocks keep"),
        ("recomputed keeps nothing", recomputed_keeps_nothing, "below the measured peak(.|\n)*recompute='full'"),
        ("recomputed keeps two", recomputed_keeps_two, "above the measured peak(.|\n)*recompute='full'"),
        ("two score arrays", two_score_arrays, "one array of scores"),
        ("four logits", four_logits, "and not four"),
        ("gradients too early", gradients_too_early, "the gradients are not there yet"),
        ("scores though recomputed", scores_though_recomputed, "the scores go as well"),
        ("truthy recompute", truthy_recompute, "counts as true"),
        ("the course's estimate", the_courses_estimate, "not in the way asked for(.|\n)*asks labkit"),
        ("the published block", published_block, "% (above|below) the measured peak"),
    ],
    "10.4": [
        ("everything fits", everything_fits, "What does not fit cannot be chosen"),
        ("gigabytes", gigabytes, "A GiB is"),
        ("less than the card", less_than_the_card, "exactly card_gib GiB fits"),
        ("without activations", without_activations, "there besides state_bytes"),
        ("copies are shared", copies_are_shared, "each card holds all of state_bytes"),
        ("activations are shared", activations_are_shared, "do not divide them"),
        ("no deadline", no_deadline, "within deadline_h"),
        ("before the deadline", before_the_deadline, "exactly at the deadline is in time"),
        ("work is not shared", work_is_not_shared, "Cards share the work"),
        ("k times as fast", k_times_as_fast, "k cards do not give k times"),
        ("half a ring", half_a_ring, "of two cards each sends as much as there is, and not less"),
        ("a ring of one pass", a_ring_of_one_pass, "of eight cards each sends 1.75 times what there is, and not less"),
        ("all gradients once", all_gradients_once, "of eight cards each sends 1.75 times what there is, and not less"),
        ("all gradients twice", all_gradients_twice, "of two cards each sends as much as there is, and not more"),
        ("a ring that grows", a_ring_that_grows, "of two cards each sends as much as there is, and not more"),
        ("overlapped", overlapped, "nothing overlaps"),
        ("pays one card", pays_one_card, "All cards are paid for"),
        ("the quickest", the_quickest, "not the quickest"),
        ("the fewest cards", the_fewest_cards, "not the fewest"),
        ("the first of equals", the_first_of_equals, "one that is done first"),
        ("fails without one", fails_without_one, "ValueError"),
        ("gives the option", gives_the_option, "wrong type"),
        ("writes into an option", writes_into_an_option, r"options\[0\]\['cards'\](.|\n)*before +4\nafter +5"),
    ],
}
