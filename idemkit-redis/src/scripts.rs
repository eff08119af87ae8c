//! The scripts, one an operation, each with the same prelude.

use std::sync::LazyLock;

use redis::{Cmd, Script as Source, cmd};

/// A script, called by its SHA-1.
#[derive(Debug)]
pub(crate) struct Script {
    code: &'static str,
    sha: String,
}

macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!(include_str!("scripts/record.lua"), "\n", include_str!($file))));
    };
}

script!(CLAIM, "scripts/claim.lua");
script!(COMPLETE, "scripts/complete.lua");
script!(RENEW, "scripts/renew.lua");
script!(RELEASE, "scripts/release.lua");
script!(LOOK, "scripts/look.lua");
script!(REPLACE, "scripts/replace.lua");

/// An argument of a script.
#[derive(Clone, Debug)]
pub(crate) enum Arg<'a> {
    Text(&'a str),
    Owned(String),
    Number(u64),
    Bytes(&'a [u8]),
}

impl Script {
    fn new(code: &'static str) -> Self {
        Self { code, sha: Source::new(code).get_hash().to_owned() }
    }

    /// The call by SHA-1: what the server knows once it has seen the code.
    pub(crate) fn by_sha(&self, key: &str, args: &[Arg<'_>]) -> Cmd {
        with_args("EVALSHA", &self.sha, key, args)
    }

    /// The call with the code: for a server that does not know it yet, or no more.
    pub(crate) fn by_code(&self, key: &str, args: &[Arg<'_>]) -> Cmd {
        with_args("EVAL", self.code, key, args)
    }
}

fn with_args(command: &str, script: &str, key: &str, args: &[Arg<'_>]) -> Cmd {
    let mut call = cmd(command);
    call.arg(script).arg(1).arg(key);
    for arg in args {
        match arg {
            Arg::Text(text) => call.arg(text),
            Arg::Owned(text) => call.arg(text),
            Arg::Number(number) => call.arg(number),
            Arg::Bytes(bytes) => call.arg(bytes),
        };
    }
    call
}
