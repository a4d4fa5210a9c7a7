//! Tokens go on rising where the sequence has forgotten what it gave out, and people are told.
