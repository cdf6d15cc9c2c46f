"""Model, objective, step, loop, checkpoint, preemption and distribution."""
