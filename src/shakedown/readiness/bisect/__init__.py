"""Localisation: the first module, then the first operator, whose inputs agree and whose output does not.

A finished trial says that a cell is wrong; this says where. Order of the files::

    run      checks the request, starts one fresh process for each stage, writes ``bisect.json``
    child    that process
    lab      the restored workload on three sides: float64 on the CPU, the CPU at the run's precision, the target
    modules  outputs of every module call, and gradients in the order in which the backward pass makes them
    walk     every operator of a region, run again on the CPU from its own inputs
    again    how an operator is run on the CPU and in float64, and which operators have no single right answer
    graphs   compiled: the smallest part of a captured graph that differs from its operators one by one
    case     the finding as a program of a few lines with its tensors, made as small as it stays wrong

``docs/evidence/bisect.md`` says what a result means.
"""
