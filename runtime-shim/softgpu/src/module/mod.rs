//! Modules and functions.
