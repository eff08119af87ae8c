//! A real pgbouncer in transaction mode.

use std::{os::unix::fs::MetadataExt as _, path::Path, process::Stdio};

use idemkit_core::{ClaimOutcome, Store, StoreErrorKind, Transacted, WaitOutcome};
use idemkit_servers::{Kind, Place, address, wait_until_ready};
use tokio::process::{Child, Command};

use crate::support::{PATIENCE, Table, acquired, builder, claim, completion, connect, held, key, secs, unique, url};

/// A pooler of a test's own, before a server. It has few connections to it, so that they really are shared.
pub(crate) struct PgBouncer {
    port: u16,
    database: String,
    folder: std::path::PathBuf,
    _process: Child,
}

impl PgBouncer {
    pub(crate) fn before(url: &str) -> Self {
        let server = address(Kind::Postgres, url).unwrap();
        let database = url.rsplit('/').next().unwrap().to_owned();
        let folder = std::env::temp_dir().join(unique());
        std::fs::create_dir(&folder).unwrap();
        let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let config = format!(
            "[databases]\n* = host={} port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 6\nmax_client_conn = 500\n\
             ignore_startup_parameters = extra_float_digits\n",
            server.ip(),
            server.port()
        );
        std::fs::write(folder.join("pgbouncer.ini"), config).unwrap();
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].into_iter().find(|path| Path::new(path).exists());
        let program = program.expect("pgbouncer, which `cargo xtask servers install` installs");
        let mut command = Command::new(program);
        // It does not run as root.
        if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
            command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", program]);
            std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        }
        command.arg("-q").arg(folder.join("pgbouncer.ini")).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.kill_on_drop(true).spawn().unwrap();
        let place = Place { address: ([127, 0, 0, 1], port).into(), own_port: port };
        wait_until_ready(Kind::Postgres, place, PATIENCE, || Ok(())).unwrap();
        Self { port, database, folder, _process: process }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{}", self.port, self.database)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_the_pooler_it_listens_and_through_it_it_transacts() {
    let (pooler, table) = (PgBouncer::before(&url()), Table::make().await);
    let builder = || builder().url(pooler.url()).table(&table.name).pooler(true);
    let (here, there) = (builder().build().unwrap(), builder().listen_url(url()).build().unwrap());
    assert!(!here.capabilities().notifies && there.capabilities().notifies);

    let request = claim(secs(600));
    acquired(here.claim(&key("order"), &request).await.unwrap());
    let waiter = tokio::spawn(async move { there.wait(&key("order"), secs(300)).await });
    table.until_marked().await;
    here.complete(&key("order"), &completion(request.token, "done")).await.unwrap();
    let completed = std::time::Instant::now();
    assert!(matches!(waiter.await.unwrap().unwrap(), WaitOutcome::Completed(_)));
    assert!(completed.elapsed() < PATIENCE, "it waited on");

    let mut workers = tokio::task::JoinSet::new();
    for n in 0..40 {
        let store = here.clone();
        workers.spawn(async move {
            let order = held(&store, key(&format!("order {n}")), secs(600)).await;
            let done = store.transact(order, async |mut tx| {
                sqlx::raw_sql("SELECT pg_sleep(0.01)").execute(&mut *tx).await?;
                Ok::<_, sqlx::Error>(tx.complete(idemkit_core::StoredResult::new(200, "done")))
            });
            assert_eq!(done.await.unwrap(), Transacted::Committed(()));
            assert!(matches!(store.claim(&order.key, &claim(secs(600))).await.unwrap(), ClaimOutcome::Completed(_)));
        });
    }
    while let Some(done) = workers.join_next().await {
        done.unwrap();
    }
    // Nothing that was set for a transaction stays in the connections.
    let idle: String = sqlx::raw_sql("SHOW idle_in_transaction_session_timeout")
        .fetch_one(&mut connect(&pooler.url()).await)
        .await
        .map(|row| sqlx::Row::get(&row, 0))
        .unwrap();
    assert_eq!(idle, "0");
    table.drop().await;
}

/// What happens to whoever does not read the page: it says what mends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_statements_behind_a_pooler_are_misconfigured() {
    let (pooler, table) = (PgBouncer::before(&url()), Table::make().await);
    let store = builder().url(pooler.url()).table(&table.name).notices(false).build().unwrap();
    let mut claimers = tokio::task::JoinSet::new();
    for n in 0..100 {
        let store = store.clone();
        claimers.spawn(async move { store.claim(&key(&format!("order {n}")), &claim(secs(600))).await });
    }
    let mut told = false;
    while let Some(claimed) = claimers.join_next().await {
        if let Err(error) = claimed.unwrap() {
            told |= error.kind() == StoreErrorKind::Misconfigured && error.to_string().contains("Builder::pooler");
        }
    }
    assert!(told);
    table.drop().await;
}
