//! The servers that idemkit's tests run on.
//!
//! A test asks [`url`] where its server is, and gets it from the environment: `cargo xtask test` starts all four and
//! sets the variables, in Docker, or from programs on the machine. A test that has to end a server, or to start it with
//! settings of its own, owns one: [`Local`]. A test of a wire that fails puts a [`Proxy`] before its server.
//!
//! ```no_run
//! use idemkit_servers::{Kind, Local};
//!
//! let redis_url = idemkit_servers::url(Kind::Redis)?;
//!
//! let mut own = Local::start(Kind::Redis)?;
//! own.kill()?;
//! own.restart()?; // On the same port, with the same data.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A `Local` is ended, and its data removed, when it is dropped, and also when the process that owns it ends in any
//! other way.

mod address;
mod error;
mod kind;
mod local;
mod probe;
mod program;
mod proxy;
mod tools;

pub use address::address;
pub use error::Error;
pub use kind::{Kind, MissingServer, url};
pub use local::{Local, Options};
pub use probe::{Place, probe, wait_until_ready};
pub use program::{Program, find_program, find_program_called, on_path};
pub use proxy::{Lost, Proxy};
pub use tools::tools_folder;
