//! The fence inside a statement is evaluated whenever a row is written, however it is planned.
