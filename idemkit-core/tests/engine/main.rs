//! The engine, as its users see it: under paused time, on a memory store whose calls can be made to fail.

// Clippy takes unwrap and panic for a test's way to fail only where it is told so.
#[cfg(test)]
mod begin;
#[cfg(feature = "local-cache")]
#[cfg(test)]
mod cache;
#[cfg(test)]
mod cut_off;
#[cfg(test)]
mod errors;
mod hand_over;
#[cfg(test)]
mod lease;
#[cfg(test)]
mod outage;
#[cfg(test)]
mod stress;
#[cfg(test)]
mod support;
#[cfg(test)]
mod typed;
#[cfg(test)]
mod waiting;
