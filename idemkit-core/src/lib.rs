//! The core of idemkit.
