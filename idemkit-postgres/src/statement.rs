//! Statements, from files of their own, and their arguments: bound to a prepared statement, or written out for poolers that
//! keep none.

use std::{borrow::Cow, fmt::Write as _, sync::Arc};

use sqlx::{
    Arguments as _, AssertSqlSafe, ConnectOptions as _, PgConnection,
    postgres::{PgArguments, PgConnectOptions, PgRow},
};

/// The names that a statement uses, quoted.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) table: String,
    pub(crate) versions: String,
    pub(crate) index: String,
}

impl Names {
    pub(crate) fn new(schema: Option<&str>, table: &str) -> Self {
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let qualified = |name: &str| match schema {
            Some(schema) => format!("{}.{}", quoted(schema), quoted(name)),
            None => quoted(name),
        };
        Self {
            table: qualified(table),
            versions: qualified(&format!("{table}_schema")),
            // An index lies in its table's schema, and is named without it.
            index: quoted(&format!("{table}_lease_until")),
        }
    }

    pub(crate) fn fill(&self, sql: &str) -> String {
        sql.replace("{seen}", include_str!("../sql/seen.sql"))
            .replace("{readable}", include_str!("../sql/readable.sql"))
            .replace("{table}", &self.table)
            .replace("{versions}", &self.versions)
            .replace("{index}", &self.index)
    }
}

/// A statement with its names in place.
#[derive(Clone, Debug)]
pub(crate) struct Statement(Arc<str>);

/// All of them.
#[derive(Clone, Debug)]
pub(crate) struct Statements {
    pub(crate) claim: Statement,
    pub(crate) complete: Statement,
    pub(crate) renew: Statement,
    pub(crate) release: Statement,
    pub(crate) look: Statement,
    pub(crate) replace: Statement,
    pub(crate) lock: Statement,
    pub(crate) vacuum: Statement,
    pub(crate) check: Statement,
}

impl Statements {
    pub(crate) fn new(names: &Names) -> Self {
        let of = |sql: &str| Statement(names.fill(sql).into());
        Self {
            claim: of(include_str!("../sql/claim.sql")),
            complete: of(include_str!("../sql/complete.sql")),
            renew: of(include_str!("../sql/renew.sql")),
            release: of(include_str!("../sql/release.sql")),
            look: of(include_str!("../sql/look.sql")),
            replace: of(include_str!("../sql/replace.sql")),
            lock: of(include_str!("../sql/lock.sql")),
            vacuum: of(include_str!("../sql/vacuum.sql")),
            check: of(include_str!("../sql/check.sql")),
        }
    }
}

/// An argument.
#[derive(Clone, Debug)]
pub(crate) enum Arg<'a> {
    /// Hex digits, words of ours, or what the server has given: never a user's text.
    Text(Cow<'a, str>),
    /// Any text, or none.
    AnyText(Option<Cow<'a, str>>),
    Long(i64),
    Int(i32),
    AnyInt(Option<i32>),
    Bool(bool),
    AnyBytes(Option<&'a [u8]>),
}

/// How statements are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Prepared once a connection, and one round trip each after that.
    Prepared,
    /// One round trip each, and nothing stays in the connection: for poolers that hand each transaction another one.
    Simple,
}

impl Protocol {
    /// The options of a connection that speaks it.
    pub(crate) fn shape(self, options: PgConnectOptions) -> PgConnectOptions {
        match self {
            Self::Prepared => options,
            // The driver logs the text of a statement, and here results and tokens are in it.
            Self::Simple => options.statement_cache_capacity(0).disable_statement_logging(),
        }
    }
}

impl Statement {
    /// The first row, if there is one.
    pub(crate) async fn fetch(
        &self,
        connection: &mut PgConnection,
        protocol: Protocol,
        args: &[Arg<'_>],
    ) -> Result<Option<PgRow>, sqlx::Error> {
        match protocol {
            Protocol::Prepared => {
                let query = sqlx::query_with(AssertSqlSafe(Arc::clone(&self.0)), bound(args)?);
                query.fetch_optional(connection).await
            }
            Protocol::Simple => sqlx::raw_sql(AssertSqlSafe(self.written_out(args))).fetch_optional(connection).await,
        }
    }

    /// How many rows it has changed.
    pub(crate) async fn execute(
        &self,
        connection: &mut PgConnection,
        protocol: Protocol,
        args: &[Arg<'_>],
    ) -> Result<u64, sqlx::Error> {
        let done = match protocol {
            Protocol::Prepared => {
                sqlx::query_with(AssertSqlSafe(Arc::clone(&self.0)), bound(args)?).execute(connection).await
            }
            Protocol::Simple => sqlx::raw_sql(AssertSqlSafe(self.written_out(args))).execute(connection).await,
        };
        done.map(|done| done.rows_affected())
    }

    /// With its arguments in place. Whatever may hold a quote or a backslash is written in hex, so that no setting of the
    /// server's and no text can make it end early.
    fn written_out(&self, args: &[Arg<'_>]) -> String {
        let mut sql = String::with_capacity(self.0.len() + 64 * args.len());
        // Comments explain the arguments by their numbers.
        let code = self.0.lines().filter(|line| !line.trim_start().starts_with("--")).collect::<Vec<_>>().join("\n");
        let mut rest = code.as_str();
        while let Some(at) = rest.find(['$', '"']) {
            sql.push_str(&rest[..at]);
            rest = &rest[at..];
            // A name, in which a dollar is a letter.
            if rest.starts_with('"') {
                let end = rest[1..].find('"').map_or(rest.len(), |end| end + 2);
                sql.push_str(&rest[..end]);
                rest = &rest[end..];
                continue;
            }
            // What is no argument is the end of a pattern.
            let number = rest[1..].chars().next().and_then(|digit| digit.to_digit(10)).filter(|number| *number > 0);
            match number.and_then(|number| args.get(number as usize - 1)) {
                Some(arg) => {
                    arg.write(&mut sql);
                    rest = &rest[2..];
                }
                None => {
                    sql.push('$');
                    rest = &rest[1..];
                }
            }
        }
        sql.push_str(rest);
        sql
    }
}

fn bound(args: &[Arg<'_>]) -> Result<PgArguments, sqlx::Error> {
    let mut bound = PgArguments::default();
    for arg in args {
        match arg {
            Arg::Text(text) => bound.add(text.as_ref()),
            Arg::AnyText(text) => bound.add(text.as_deref()),
            Arg::Long(number) => bound.add(number),
            Arg::Int(number) => bound.add(number),
            Arg::AnyInt(number) => bound.add(number),
            Arg::Bool(value) => bound.add(value),
            Arg::AnyBytes(bytes) => bound.add(*bytes),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(bound)
}

impl Arg<'_> {
    fn write(&self, sql: &mut String) {
        // Writing to a string never fails.
        _ = match self {
            Self::Text(text) if text.chars().all(is_plain) => write!(sql, "'{text}'"),
            Self::Text(text) => write_hex(sql, "convert_from(decode('", text.as_bytes(), "', 'hex'), 'UTF8')"),
            Self::AnyText(Some(text)) => write_hex(sql, "convert_from(decode('", text.as_bytes(), "', 'hex'), 'UTF8')"),
            Self::AnyBytes(Some(bytes)) => write_hex(sql, "decode('", bytes, "', 'hex')"),
            Self::Long(number) => write!(sql, "{number}"),
            Self::Int(number) | Self::AnyInt(Some(number)) => write!(sql, "{number}"),
            Self::Bool(value) => write!(sql, "{value}"),
            Self::AnyText(None) | Self::AnyInt(None) | Self::AnyBytes(None) => write!(sql, "NULL"),
        };
    }
}

fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric() || "(),_".contains(character)
}

fn write_hex(sql: &mut String, before: &str, bytes: &[u8], after: &str) -> std::fmt::Result {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    sql.push_str(before);
    sql.reserve(bytes.len() * 2);
    for byte in bytes {
        sql.push(char::from(DIGITS[usize::from(byte >> 4)]));
        sql.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    sql.push_str(after);
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(None, "idemkit_records", "\"idemkit_records\"")]
    #[case(Some("audit"), "records", "\"audit\".\"records\"")]
    #[case(Some("a.b"), "x\"; DROP TABLE y; --", "\"a.b\".\"x\"\"; DROP TABLE y; --\"")]
    fn names_are_quoted(#[case] schema: Option<&str>, #[case] table: &str, #[case] quoted: &str) {
        assert_eq!(Names::new(schema, table).table, quoted);
    }

    #[test]
    fn what_is_written_out_cannot_end_early() {
        let statement =
            Statement("-- $1 in a comment\nSELECT $1, $2, $3, $4 ~ '^x$', $5, $6 FROM \"of $1\"\"$2\"".into());
        let args = [
            Arg::Text("abc123".into()),
            Arg::AnyText(Some("'; DROP TABLE x; -- \\' $1".into())),
            Arg::AnyBytes(Some(b"\x00'\\")),
            Arg::AnyText(None),
            Arg::Long(-7),
            Arg::Text("it's".into()),
        ];
        assert_eq!(
            statement.written_out(&args),
            "SELECT 'abc123', convert_from(decode('273b2044524f50205441424c4520783b202d2d205c2720243\
             1', 'hex'), 'UTF8'), decode('00275c', 'hex'), NULL ~ '^x$', -7, convert_from(decode('69742773', 'hex'), \
             'UTF8') FROM \"of $1\"\"$2\""
        );
    }

    #[test]
    fn every_name_is_filled_in() {
        let statements = format!("{:?}", Statements::new(&Names::new(None, "t")));
        assert!(
            !statements.contains("{table}") && !statements.contains("{seen}") && !statements.contains("{readable}")
        );
    }
}
