//! The table: made and changed by versioned migrations, applied when they are called for.

use idemkit_core::{Applied, StoreError, StoreErrorKind};
use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _};

use crate::{
    NAME,
    classify::{Meaning, classify, meaning},
    link::{Lease, Link},
    statement::{Names, Statement},
    store::PostgresStore,
};

/// The migrations, in their order. What was released is never changed.
const MIGRATIONS: [&str; 1] = [include_str!("../sql/migrations/001.sql")];
/// One at a time in a database: "idemkit" in ASCII.
const LOCK: i64 = 0x69_64_65_6d_6b_69_74;
/// How often a migration that met another one is tried.
const TRIES: u32 = 5;

/// What [`PostgresStore::migrate`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migrated {
    /// The version that the table had; 0 where there was none.
    pub from: u32,
    /// The version that it has now.
    pub to: u32,
}

/// The newest version that this build knows, and the only one that it works with.
fn newest() -> i32 {
    i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX)
}

impl PostgresStore {
    /// Makes the table, or brings it to the version of this build. Safe to call twice, and from many processes at once.
    ///
    /// Needs `CREATE` on the schema, once; the store itself needs `SELECT, INSERT, UPDATE, DELETE` on the table, and `SELECT`
    /// on the one beside it that has its version. Call it from a deployment, or apply [`schema_sql`](Self::schema_sql).
    ///
    /// # Errors
    /// *Misconfigured* where permissions are missing, or the table is of a newer version than this build knows.
    ///
    /// ```no_run
    /// use idemkit_postgres::PostgresStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = PostgresStore::new("postgres://localhost/orders")?;
    /// let migrated = store.migrate().await?;
    /// println!("version {} became {}", migrated.from, migrated.to);
    /// # Ok(()) }
    /// ```
    pub async fn migrate(&self) -> Result<Migrated, StoreError> {
        let (link, names) = self.link_and_names();
        let mut tries = 0;
        loop {
            tries += 1;
            match migrate(link, names).await {
                Ok(migrated) if migrated.from > migrated.to => return Err(is_newer(migrated.from)),
                Ok(migrated) => return Ok(migrated),
                Err(error) if meaning(&error) == Meaning::Contended && tries < TRIES => {}
                Err(error) => return Err(classify(error, Applied::Unknown)),
            }
        }
    }

    /// The SQL that [`migrate`](Self::migrate) applies to an empty database, for those who have their own tool for it.
    #[must_use]
    pub fn schema_sql(&self) -> String {
        let (_, names) = self.link_and_names();
        let mut sql = versions_table(names);
        for (version, migration) in (1..).zip(MIGRATIONS) {
            sql += &names.fill(migration);
            sql += &record_version(names, version);
        }
        sql
    }
}

fn versions_table(names: &Names) -> String {
    let Names { versions, .. } = names;
    format!(
        "CREATE TABLE IF NOT EXISTS {versions} (version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now());\n"
    )
}

fn record_version(names: &Names, version: i32) -> String {
    format!("INSERT INTO {} (version) VALUES ({version}) ON CONFLICT DO NOTHING;\n", names.versions)
}

async fn migrate(link: &Link, names: &Names) -> Result<Migrated, sqlx::Error> {
    let mut connection = Lease::take(&link.pool).await?;
    // After an error it is dropped without being given back: closed, and its transaction with it.
    let done = within_transaction(&mut connection, names).await?;
    connection.give_back_after(Ok(done))
}

/// In one transaction, alone in the database: it is all applied, or nothing. Each statement by the simple protocol, which
/// poolers pass on as it is.
async fn within_transaction(connection: &mut PgConnection, names: &Names) -> Result<Migrated, sqlx::Error> {
    let begin = format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK});");
    connection.execute(AssertSqlSafe(begin)).await?;
    connection.execute(AssertSqlSafe(versions_table(names))).await?;
    let ask = format!("SELECT coalesce(max(version), 0) AS version FROM {}", names.versions);
    let from: i32 = sqlx::raw_sql(AssertSqlSafe(ask)).fetch_one(&mut *connection).await?.try_get("version")?;
    for (version, migration) in (1..).zip(MIGRATIONS) {
        if version > from {
            connection.execute(AssertSqlSafe(names.fill(migration))).await?;
            connection.execute(AssertSqlSafe(record_version(names, version))).await?;
        }
    }
    connection.execute("COMMIT").await?;
    let number = |version: i32| u32::try_from(version).unwrap_or_default();
    Ok(Migrated { from: number(from), to: number(newest()) })
}

/// What is looked at once, before the first operation: the table's version, and what silently voids the promise.
pub(crate) async fn check(link: &Link, check: &Statement, allow_asynchronous_commit: bool) -> Result<(), StoreError> {
    let misconfigured =
        |detail: String| Err(StoreError::new(NAME, StoreErrorKind::Misconfigured, Applied::No).with_detail(detail));
    let Some(row) = link.fetch(check, &[], Applied::No).await? else { return Ok(()) };
    let read = |error| classify(error, Applied::No);
    let version: Option<i32> = row.try_get("version").map_err(read)?;
    let (standby, commit): (bool, String) =
        (row.try_get("standby").map_err(read)?, row.try_get("synchronous_commit").map_err(read)?);
    match version.unwrap_or_default() {
        version if version > newest() => return Err(is_newer(u32::try_from(version).unwrap_or_default())),
        version if version < newest() => {
            return misconfigured(format!(
                "the table is of version {version}, and this build wants {}: call PostgresStore::migrate",
                newest()
            ));
        }
        _ => {}
    }
    if standby {
        return misconfigured("the server is a standby: connect to the primary".to_owned());
    }
    if commit == "off" && !allow_asynchronous_commit {
        return misconfigured(
            "synchronous_commit is off: a crash of the server forgets claims and results of its last moments, and their \
             operations would run again; set it to on for this role, or accept that with Builder::allow_asynchronous_commit"
                .to_owned(),
        );
    }
    Ok(())
}

fn is_newer(version: u32) -> StoreError {
    let error = StoreError::new(NAME, StoreErrorKind::Misconfigured, Applied::No);
    error.with_detail(format!("the table is of version {version}, and this build knows {}: update idemkit", newest()))
}
