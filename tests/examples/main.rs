//! The example programs, run as a user runs them.

// Clippy takes expect and panic for a test's way to fail only where it is told so.
#[cfg(feature = "json")]
#[cfg(test)]
mod programs;
