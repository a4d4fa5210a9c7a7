//! The queue across clients and processes: order, bounds, and what a waiter costs.
