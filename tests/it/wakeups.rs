//! Waking without notifications: every way they can fail, and how it is found out.
