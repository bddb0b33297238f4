"""What operations keep, as a table: (numbers per token and unit of width, bytes in float32, bytes with autocast)."""

BLOCK = [
    ("input of the first norm", 1, 4, 4),
    ("its output, input of the first linear layer", 1, 4, 2),
    ("queries, keys, values", 3, 4, 2),
    ("output of the attention", 1, 4, 2),
    ("input of the second norm", 1, 4, 4),
    ("its output", 1, 4, 2),
    ("before and after GELU", 8, 4, 2),
]
