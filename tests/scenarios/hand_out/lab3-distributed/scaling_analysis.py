def speedup(t1, tn):
    return t1 / tn
