//! The command line, from words to a task.

use std::ffi::OsString;

pub(crate) const USAGE: &str = "\
Usage: cargo xtask <command>

  test [ARGS…]      the tests of the workspace, with the servers that they need; ARGS go to `cargo test`
  servers [ARGS…]   the servers of the tests: up, with, install, images; `cargo xtask servers help`
  images            local Docker images of those servers, where none can be pulled
  verify            the completion gate: all that CI checks; never writes to the tree
      --no-tests      all but the tests
      --advisories    security advisories too; fetches the RustSec database from GitHub
  fix               formats, and applies clippy's suggestions
  tools             installs the pinned cargo-hack and cargo-deny, which verify uses, into .tools/
                    or the folder named by IDEMKIT_TOOLS_DIR
  sample-webhooks   writes examples/data/webhooks.jsonl anew
  help              this text";

/// One thing to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help,
    Test(Vec<OsString>),
    Servers(Vec<OsString>),
    Verify(VerifyOptions),
    Fix,
    Tools,
    SampleWebhooks,
}

/// What `verify` leaves out or adds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct VerifyOptions {
    pub(crate) no_tests: bool,
    pub(crate) advisories: bool,
}

/// The task that the words ask for, or what is wrong with them.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Task, String> {
    let mut words = words.into_iter();
    let command = words.next().ok_or("a command is missing")?;
    let rest: Vec<OsString> = words.collect();
    match command.to_str() {
        Some("test") => Ok(Task::Test(rest)),
        Some("servers") => Ok(Task::Servers(rest)),
        Some("images") => alone(Task::Servers(vec!["images".into()]), &rest),
        Some("verify") => parse_verify(&rest).map(Task::Verify),
        Some("fix") => alone(Task::Fix, &rest),
        Some("tools") => alone(Task::Tools, &rest),
        Some("sample-webhooks") => alone(Task::SampleWebhooks, &rest),
        Some("help" | "--help" | "-h") => alone(Task::Help, &rest),
        _ => Err(format!("unknown command `{}`", command.display())),
    }
}

fn parse_verify(words: &[OsString]) -> Result<VerifyOptions, String> {
    let mut options = VerifyOptions::default();
    for word in words {
        match word.to_str() {
            Some("--no-tests") => options.no_tests = true,
            Some("--advisories") => options.advisories = true,
            _ => return Err(format!("verify does not know `{}`", word.display())),
        }
    }
    Ok(options)
}

/// A task that takes no further words.
fn alone(task: Task, rest: &[OsString]) -> Result<Task, String> {
    match rest.first() {
        None => Ok(task),
        Some(word) => Err(format!("unexpected `{}`", word.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Task, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn each_command_is_known() {
        assert_eq!(parsed("help"), Ok(Task::Help));
        assert_eq!(parsed("--help"), Ok(Task::Help));
        assert_eq!(parsed("test"), Ok(Task::Test(vec![])));
        assert_eq!(parsed("servers"), Ok(Task::Servers(vec![])));
        assert_eq!(parsed("images"), Ok(Task::Servers(vec!["images".into()])));
        assert_eq!(parsed("fix"), Ok(Task::Fix));
        assert_eq!(parsed("tools"), Ok(Task::Tools));
        assert_eq!(parsed("sample-webhooks"), Ok(Task::SampleWebhooks));
    }

    #[test]
    fn every_command_is_in_the_usage_text() {
        for command in ["test", "servers", "images", "verify", "fix", "tools", "sample-webhooks", "help"] {
            assert!(USAGE.contains(&format!("\n  {command} ")), "{command}");
        }
    }

    #[test]
    fn tests_get_their_arguments_untouched() {
        let extra = ["-p", "idemkit-core", "--", "--nocapture", "--help"].map(OsString::from);
        assert_eq!(parsed("test -p idemkit-core -- --nocapture --help"), Ok(Task::Test(extra.to_vec())));
    }

    #[test]
    fn servers_get_their_arguments_untouched() {
        let extra = ["with", "--", "cargo", "test", "--", "--help"].map(OsString::from);
        assert_eq!(parsed("servers with -- cargo test -- --help"), Ok(Task::Servers(extra.to_vec())));
    }

    #[test]
    fn verify_takes_its_two_options_in_any_order() {
        let all = VerifyOptions { no_tests: true, advisories: true };
        assert_eq!(parsed("verify"), Ok(Task::Verify(VerifyOptions::default())));
        assert_eq!(parsed("verify --advisories --no-tests"), Ok(Task::Verify(all)));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        assert_eq!(parsed(""), Err("a command is missing".into()));
        assert_eq!(parsed("chekc"), Err("unknown command `chekc`".into()));
        assert_eq!(parsed("verify --fast"), Err("verify does not know `--fast`".into()));
        assert_eq!(parsed("fix --all"), Err("unexpected `--all`".into()));
    }
}
