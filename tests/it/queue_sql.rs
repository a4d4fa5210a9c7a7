//! The queue in SQL: each interleaving that could lose a wake-up or the order, step by step.
