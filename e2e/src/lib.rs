//! Tests of the whole, through the facade: see `tests/`. There is nothing to link against.
