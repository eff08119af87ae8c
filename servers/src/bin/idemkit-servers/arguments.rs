//! The command line, from words to a task.

use std::ffi::OsString;

pub(crate) const USAGE: &str = "\
Usage: cargo xtask servers [command]

  up                    brings up the four servers, prints NAME=URL lines, and keeps them until Ctrl-C
                        or until standard input closes; what `cargo xtask servers` alone does
  with -- COMMAND…      brings them up for one command, which finds their URLs in its environment
  install [--programs]  installs the programs of servers that neither a URL nor Docker provides;
                        with --programs, all of them
  images                makes Docker images of the programs on this machine, and prints the lines that
                        name them in the environment (also: cargo xtask images)
  help                  this text

Each server comes from the first of these that works: a URL (IDEMKIT_TEST_REDIS_URL, …), Docker
(an image by IDEMKIT_TEST_REDIS_IMAGE, …, or the official one; `none` for no Docker), a program on PATH
or in the tools folder. The others are called DYNAMODB, POSTGRES and MONGO.";

/// One thing to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help,
    Up,
    With(Vec<OsString>),
    Install(Scope),
    Images,
}

/// Which programs to install.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Of servers that come in no other way.
    Missing,
    /// All: for images, and for tests that end a server of their own.
    All,
}

/// The task that the words ask for, or what is wrong with them.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Task, String> {
    let words: Vec<OsString> = words.into_iter().collect();
    let known: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    match known[..] {
        [] | ["up"] => Ok(Task::Up),
        ["with", "--", _, ..] => Ok(Task::With(words[2..].to_vec())),
        ["with", ..] => Err("`with` takes a command behind `--`".into()),
        ["install"] => Ok(Task::Install(Scope::Missing)),
        ["install", "--programs"] => Ok(Task::Install(Scope::All)),
        ["images"] => Ok(Task::Images),
        ["help" | "--help" | "-h"] => Ok(Task::Help),
        ["up" | "images" | "help" | "install", ..] => Err(format!("unexpected `{}`", words[1].display())),
        _ => Err(format!("unknown command `{}`", words[0].display())),
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
        assert_eq!(parsed(""), Ok(Task::Up));
        assert_eq!(parsed("up"), Ok(Task::Up));
        assert_eq!(parsed("install"), Ok(Task::Install(Scope::Missing)));
        assert_eq!(parsed("install --programs"), Ok(Task::Install(Scope::All)));
        assert_eq!(parsed("images"), Ok(Task::Images));
        assert_eq!(parsed("--help"), Ok(Task::Help));
    }

    #[test]
    fn a_command_gets_its_words_untouched() {
        let words = ["cargo", "test", "--", "--nocapture"].map(OsString::from);
        assert_eq!(parsed("with -- cargo test -- --nocapture"), Ok(Task::With(words.to_vec())));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        assert_eq!(parsed("down"), Err("unknown command `down`".into()));
        assert_eq!(parsed("up now"), Err("unexpected `now`".into()));
        assert_eq!(parsed("install --all"), Err("unexpected `--all`".into()));
        for line in ["with", "with --", "with cargo test"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
