//! The completion in a transaction with the caller's own writes: both or neither, whatever happens.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use idemkit_core::{
    ClaimOutcome, CompletedRecord, Fingerprint, HeldClaim, InTransaction, Outcome, Store, StoreError, StoreErrorKind,
    StoredResult, Transacted,
};
use idemkit_mongo::{
    MongoStore, TransactError,
    mongodb::{
        Client,
        bson::doc,
        error::Error,
        options::{ClientOptions, ReadPreference, SelectionCriteria},
    },
};
use idemkit_servers::{Kind, Local, Lost, Program, Proxy};
use rstest::rstest;
use tokio::{process::Command, task::JoinSet};

use crate::support::{
    Database, PATIENCE, answered, assert_held, builder, claim, completion, fail, failing, held, key, own, secs,
    taken_over,
};

/// On secantusd, an open transaction that waits or is given up keeps everybody else waiting for half a minute: there these tests have
/// a server of their own.
async fn apart() -> (Option<Local>, Database) {
    match idemkit_servers::find_program(Kind::Mongo) {
        Ok((_, Program::Secantus)) => {
            let server = own(&[]);
            let database = Database::at(server.url()).await;
            (Some(server), database)
        }
        _ => (None, Database::make().await),
    }
}

async fn ready(database: &Database) -> MongoStore {
    // Collections are made outside of transactions, as on older servers they must be.
    database.collection("ledger").insert_one(doc! { "first": true }).await.unwrap();
    database.collection("ledger").delete_many(doc! {}).await.unwrap();
    database.store().build().await.unwrap()
}

async fn transact(store: &MongoStore, database: &Database, claim: HeldClaim) -> Result<Transacted<u32>, TransactError> {
    let ledger = store.client().database(&database.name).collection("ledger");
    store
        .transact(claim, |mut tx| {
            let ledger = ledger.clone();
            async move {
                ledger.insert_one(doc! { "key": claim.key.to_string() }).session(&mut *tx).await?;
                Ok(tx.complete(StoredResult::new(201, "done")).with(7))
            }
        })
        .await
}

async fn written(database: &Database) -> u64 {
    database.collection("ledger").count_documents(doc! {}).await.unwrap()
}

fn body(record: &CompletedRecord) -> &[u8] {
    &record.outcome.stored().unwrap().body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mongo_writes_and_completion_commit_together_and_once() {
    let (_server, database) = apart().await;
    let store = ready(&database).await;
    let order = held(&store, key("order"), secs(300)).await;
    assert_eq!(transact(&store, &database, order).await.unwrap(), Transacted::Committed(7));
    assert_eq!(written(&database).await, 1);
    let replay = store.claim(&order.key, &claim(secs(300))).await.unwrap();
    assert!(matches!(&replay, ClaimOutcome::Completed(record) if body(record) == b"done"), "{replay:?}");
    for again in [order, HeldClaim { key: order.key, token: claim(secs(1)).token }] {
        match transact(&store, &database, again).await.unwrap() {
            Transacted::AlreadyCompleted(record) => assert_eq!(body(&record), b"done"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(written(&database).await, 1);
    database.drop().await;
}

/// Again where the machine has stalled before the commit.
async fn until_sent(store: &MongoStore, database: &Database, claim: HeldClaim) -> Result<Transacted<u32>, StoreError> {
    let began = Instant::now();
    loop {
        match transact(store, database, claim).await {
            Err(TransactError::Store(error)) if !error.may_be_applied() => {
                assert!(began.elapsed() < PATIENCE, "{error}")
            }
            Err(TransactError::Store(error)) => return Err(error),
            done => return Ok(done.unwrap()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mongo_a_commit_whose_acknowledgement_is_lost_applies_its_effect_once() {
    let (_server, database) = apart().await;
    ready(&database).await;
    let proxy = Proxy::before(Kind::Mongo, &database.url).unwrap();
    let builder = builder().url(proxy.url()).database(&database.name).notices(false);
    let store = builder.deadline(Duration::from_secs(4)).build().await.unwrap();
    let order = held(&store, key("order"), secs(300)).await;
    proxy.lose_reply_to(b"commitTransaction", Lost::ByReset);
    // The driver commits again by itself: committing twice is committing once.
    match until_sent(&store, &database, order).await {
        Ok(done) => assert_eq!(done, Transacted::Committed(7)),
        Err(error) => assert!(error.may_be_applied(), "{error}"),
    }
    // The store may give up before the server answers.
    let began = Instant::now();
    while (proxy.lost(), written(&database).await) != (1, 1) {
        assert!(began.elapsed() < PATIENCE, "{} lost, {} written", proxy.lost(), written(&database).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let order = held(&store, key("silent"), secs(300)).await;
    proxy.lose_reply_to(b"commitTransaction", Lost::InSilence);
    let error = until_sent(&store, &database, order).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true), "{error}");
    let again = answered(async || match transact(&store, &database, order).await {
        Err(TransactError::Store(error)) => Err(error),
        other => Ok(other.unwrap()),
    });
    let again = again.await;
    assert!(matches!(&again, Transacted::AlreadyCompleted(record) if body(record) == b"done"), "{again:?}");
    assert_eq!(written(&database).await, 2);
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mongo_a_zombies_transaction_never_commits() {
    let (_server, database) = apart().await;
    let store = ready(&database).await;
    let zombie = held(&store, key("order"), secs(300)).await;
    database.lapse(&zombie).await;
    let successor = claim(secs(600));
    taken_over(&store, &zombie.key, &successor).await;
    assert_eq!(transact(&store, &database, zombie).await.unwrap(), Transacted::Fenced);
    assert_eq!(written(&database).await, 0, "its operation did not even run");

    let outcome = Outcome::Result(StoredResult::new(200, "zombie"));
    let ledger = database.collection("ledger");
    let mut session = store.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let theirs = store.client().database(&database.name).collection(ledger.name());
    theirs.insert_one(doc! { "zombie": true }).session(&mut session).await.unwrap();
    let fenced = store.complete_in(&mut session, &zombie, outcome.clone(), secs(600)).await.unwrap();
    assert_eq!(fenced, InTransaction::Fenced);
    // Even where that is overlooked.
    session.commit_transaction().await.unwrap_err();
    assert_eq!(written(&database).await, 0);

    store.complete(&zombie.key, &completion(successor.token, "the successor's")).await.unwrap();
    match transact(&store, &database, zombie).await.unwrap() {
        Transacted::AlreadyCompleted(record) => assert_eq!(body(&record), b"the successor's"),
        other => panic!("{other:?}"),
    }
    session.start_transaction().await.unwrap();
    match store.complete_in(&mut session, &zombie, outcome, secs(600)).await.unwrap() {
        InTransaction::AlreadyCompleted(record) => assert_eq!(body(&record), b"the successor's"),
        other => panic!("{other:?}"),
    }
    let nobody = HeldClaim { key: key("never claimed"), token: zombie.token };
    assert_eq!(transact(&store, &database, nobody).await.unwrap(), Transacted::Fenced);
    assert_eq!(written(&database).await, 0);
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mongo_an_error_of_the_operation_rolls_back_and_a_transient_one_runs_again() {
    let (_server, database) = apart().await;
    let store = ready(&database).await;
    let order = held(&store, key("order"), secs(300)).await;
    let ledger = store.client().database(&database.name).collection("ledger");
    let failed: Result<Transacted<()>, _> = store
        .transact(order, |mut tx| {
            let ledger = ledger.clone();
            async move {
                ledger.insert_one(doc! { "lost": true }).session(&mut *tx).await?;
                Err(Error::custom("no money"))
            }
        })
        .await;
    assert!(matches!(failed, Err(TransactError::Operation(_))), "{failed:?}");
    assert_eq!(written(&database).await, 0);
    assert_held(&store, &order).await;

    // Forty orders add to one account: they meet, and are run again until all of them are there.
    database.collection("account").insert_one(doc! { "_id": 1, "sum": 0 }).await.unwrap();
    let mut workers = JoinSet::new();
    for n in 0..40 {
        let store = store.clone();
        let account = store.client().database(&database.name).collection::<mongodb::bson::Document>("account");
        workers.spawn(async move {
            let order = held(&store, key(&format!("order {n}")), secs(600)).await;
            let done = store.transact(order, |mut tx| {
                let account = account.clone();
                async move {
                    account.update_one(doc! { "_id": 1 }, doc! { "$inc": { "sum": 1 } }).session(&mut *tx).await?;
                    Ok(tx.complete(StoredResult::new(200, "")))
                }
            });
            assert_eq!(done.await.unwrap(), Transacted::Committed(()));
        });
    }
    while let Some(done) = workers.join_next().await {
        done.unwrap();
    }
    let account = database.collection("account").find_one(doc! { "_id": 1 }).await.unwrap().unwrap();
    assert_eq!(account.get_i32("sum").unwrap(), 40);
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mongo_a_client_that_prefers_secondaries_transacts_on_the_primary() {
    let (_server, database) = apart().await;
    ready(&database).await;
    let mut options = ClientOptions::parse(&database.url).await.unwrap();
    let preference = ReadPreference::SecondaryPreferred { options: None };
    options.selection_criteria = Some(SelectionCriteria::ReadPreference(preference));
    let client = Client::with_options(options).unwrap();
    let store = builder().client(client).database(&database.name).build().await.unwrap();
    let order = held(&store, key("order"), secs(300)).await;
    assert_eq!(transact(&store, &database, order).await.unwrap(), Transacted::Committed(7));
    assert_eq!(written(&database).await, 1);
    database.drop().await;
}

/// A lapsed claim whose holder is about to commit is not to be had, and not to be waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mongo_a_lapsed_claim_in_an_open_transaction_is_in_flight() {
    let (_server, database) = apart().await;
    let store = ready(&database).await;
    let order = held(&store, key("order"), secs(300)).await;
    database.lapse(&order).await;
    let mut session = store.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let outcome = Outcome::Result(StoredResult::new(200, "late"));
    let completed = store.complete_in(&mut session, &order, outcome, secs(600)).await.unwrap();
    assert_eq!(completed, InTransaction::Completed);

    let (same, mut another) = (claim(secs(300)), claim(secs(300)));
    another.fingerprint = Fingerprint::of_payload("another");
    match store.claim(&order.key, &same).await.unwrap() {
        ClaimOutcome::InFlight(held) => {
            assert_eq!((held.fingerprint, held.attempt), (same.fingerprint, 1));
            assert!(held.lease_left <= Duration::from_secs(1), "{held:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(store.claim(&order.key, &another).await.unwrap(), ClaimOutcome::Mismatch);
    session.commit_transaction().await.unwrap();
    let replay = store.claim(&order.key, &same).await.unwrap();
    assert!(matches!(&replay, ClaimOutcome::Completed(record) if body(record) == b"late"), "{replay:?}");
    database.drop().await;
}

/// An error ends the transaction on the server. A closure that hides it is not run until its time is up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mongo_a_closure_that_hides_an_error_is_told_so() {
    let (_server, database) = apart().await;
    let store = ready(&database).await;
    let order = held(&store, key("order"), secs(300)).await;
    database.collection("ledger").insert_one(doc! { "_id": 1 }).await.unwrap();
    let ledger = store.client().database(&database.name).collection("ledger");
    let mut runs = 0;
    let done = store.transact(order, |mut tx| {
        runs += 1;
        let ledger = ledger.clone();
        async move {
            ledger.insert_one(doc! { "_id": 1 }).session(&mut *tx).await.unwrap_err();
            Ok(tx.complete(StoredResult::new(201, "done")))
        }
    });
    match done.await {
        Err(TransactError::Store(error)) => {
            assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Other, false), "{error}");
            assert!(error.to_string().contains("return each of the driver's errors"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(runs, 3);
    assert_eq!(written(&database).await, 1);
    database.drop().await;
}

/// Of whatever kind an error is: what was written goes with the completion that is not there.
#[rstest]
#[case::too_large(16 * 1024 * 1024, false)]
#[case::no_answer(4, true)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mongo_a_completion_that_fails_in_a_transaction_aborts_it(#[case] bytes: usize, #[case] freezes: bool) {
    let (_server, database) = apart().await;
    ready(&database).await;
    let proxy = Proxy::before(Kind::Mongo, &database.url).unwrap();
    let builder = builder().url(proxy.url()).database(&database.name).notices(false);
    let store = builder.deadline(Duration::from_secs(2)).build().await.unwrap();
    let order = held(&store, key("order"), secs(300)).await;
    let ledger = store.client().database(&database.name).collection("ledger");
    let mut session = store.client().start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    ledger.insert_one(doc! { "half": true }).session(&mut session).await.unwrap();
    proxy.freeze(freezes);
    let outcome = Outcome::Result(StoredResult::new(200, vec![0; bytes]));
    store.complete_in(&mut session, &order, outcome, secs(600)).await.unwrap_err();
    proxy.freeze(false);
    session.commit_transaction().await.unwrap_err();
    assert_eq!(written(&database).await, 0);
}

#[derive(Clone, Copy, Debug)]
enum Ends {
    Aborts,
    Commits,
    AbortsAndBegins,
}

/// What a closure must not do: nothing is recorded outside of the transaction that its effects are in.
#[rstest]
#[case::by_abort(Ends::Aborts, 0)]
#[case::by_commit(Ends::Commits, 1)]
#[case::by_another(Ends::AbortsAndBegins, 0)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mongo_a_closure_that_ends_its_transaction_completes_nothing(#[case] how: Ends, #[case] lines: u64) {
    let (_server, database) = apart().await;
    let store = ready(&database).await;
    let order = held(&store, key("order"), secs(300)).await;
    let ledger = store.client().database(&database.name).collection("ledger");
    let done = store
        .transact(order, |mut tx| {
            let ledger = ledger.clone();
            async move {
                ledger.insert_one(doc! { "line": 1 }).session(&mut *tx).await?;
                match how {
                    Ends::Aborts => tx.abort_transaction().await?,
                    Ends::Commits => tx.commit_transaction().await?,
                    Ends::AbortsAndBegins => {
                        tx.abort_transaction().await?;
                        tx.start_transaction().await?;
                    }
                }
                Ok(tx.complete(StoredResult::new(201, "done")))
            }
        })
        .await;
    match (how, done) {
        (Ends::Aborts | Ends::Commits, Err(TransactError::Store(error))) => {
            assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::InvalidArgument, true), "{error}");
            assert!(error.to_string().contains("commit or abort"), "{error}");
        }
        (Ends::AbortsAndBegins, Ok(done)) => assert_eq!(done, Transacted::Fenced),
        other => panic!("{other:?}"),
    }
    assert_eq!(written(&database).await, lines);
    assert_held(&store, &order).await;
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mongo_nothing_is_completed_in_a_session_without_a_transaction() {
    let (_server, database) = apart().await;
    let store = ready(&database).await;
    let order = held(&store, key("order"), secs(300)).await;
    let mut session = store.client().start_session().await.unwrap();
    let outcome = Outcome::Result(StoredResult::new(200, "outside"));
    store.complete_in(&mut session, &order, outcome, secs(600)).await.unwrap_err();
    assert_held(&store, &order).await;
    database.drop().await;
}

/// The server of these tests has transactions even where it says that it stands alone. MongoDB answers the first command of
/// one with this code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standalone_server_has_no_transactions_and_says_what_it_takes() {
    let server = failing();
    let database = Database::at(server.url()).await;
    let store = ready(&database).await;
    let order = held(&store, key("order"), secs(300)).await;
    // The renewal before the transaction passes; the first command in it fails.
    let point = doc! {
        "configureFailPoint": "failCommand",
        "mode": { "skip": 1 },
        "data": { "failCommands": ["findAndModify"], "errorCode": 20 },
    };
    database.client.database("admin").run_command(point).await.unwrap();
    match transact(&store, &database, order).await {
        Err(TransactError::Store(error)) => {
            assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
            assert!(error.to_string().contains("replica set"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

/// The driver says of a commit that it does not know: it is committed again, and that is committing once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_result_is_unknown_is_committed_again() {
    let server = failing();
    let database = Database::at(server.url()).await;
    ready(&database).await;
    // See `wire`: this server takes ten seconds to say that it is still the primary.
    let store = database.store().build().await.unwrap();
    for (name, times, fault) in [
        ("closed", 3, doc! { "closeConnection": true }),
        (
            "stepped down",
            1,
            doc! { "errorCode": 189, "errorLabels": ["RetryableWriteError", "UnknownTransactionCommitResult"] },
        ),
    ] {
        let order = held(&store, key(name), secs(300)).await;
        fail(&database.client, &["commitTransaction"], times, fault).await;
        assert_eq!(transact(&store, &database, order).await.unwrap(), Transacted::Committed(7));
    }
    assert_eq!(written(&database).await, 2);
}

/// What a worker that will be killed is told by the environment.
const DATABASE: &str = "IDEMKIT_TRANSACT_TEST_DATABASE";
const URL: &str = "IDEMKIT_TRANSACT_TEST_URL";
const ROUND: &str = "IDEMKIT_TRANSACT_TEST_ROUND";

/// Does one order after the other, until it is killed.
#[tokio::test]
#[ignore = "a part of on_mongo_a_kill_leaves_both_or_neither, which kills it"]
async fn worker() {
    let variable = |name| std::env::var(name).unwrap();
    let mut database = Database::at(variable(URL)).await;
    database.name = variable(DATABASE);
    let store = database.store().notices(false).build().await.unwrap();
    for order in 0.. {
        let order = held(&store, key(&format!("order {} {order}", variable(ROUND))), secs(300)).await;
        assert_eq!(transact(&store, &database, order).await.unwrap(), Transacted::Committed(7));
        println!("\nworker: done");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mongo_a_kill_leaves_both_or_neither() {
    let (_server, database) = apart().await;
    ready(&database).await;
    for round in 0..12_u64 {
        let mut worker = Command::new(std::env::current_exe().unwrap())
            .args(["transaction::worker", "--exact", "--ignored", "--nocapture"])
            .env(URL, &database.url)
            .env(DATABASE, &database.name)
            .env(ROUND, round.to_string())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(worker.stdout.take().unwrap()));
        // However slow the machine is: it has done one order, and is at some point of a later one.
        while lines.next_line().await.unwrap().unwrap() != "worker: done" {}
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..100_000))).await;
        // SIGKILL: no destructor runs.
        worker.kill().await.unwrap();
    }
    // What it had sent last may still be under way in the server.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (mut done, mut cut_off) = (0, 0);
    let mut records = database.records().find(doc! {}).await.unwrap();
    while let Some(record) = futures_util::TryStreamExt::try_next(&mut records).await.unwrap() {
        let ledger = database.collection("ledger");
        let (id, began) = (record.get_str("_id").unwrap(), Instant::now());
        loop {
            // Two commands: what is committed between them is told by the next two.
            let record = database.records().find_one(doc! { "_id": id }).await.unwrap().unwrap();
            let lines = ledger.count_documents(doc! { "key": id }).await.unwrap();
            match (record.get_str("state").unwrap(), lines) {
                ("COMPLETED", 1) => done += 1,
                ("CLAIMED", 0) => cut_off += 1,
                other => {
                    assert!(began.elapsed() < PATIENCE, "{other:?}: {record}");
                    continue;
                }
            }
            break;
        }
    }
    println!("{done} done, {cut_off} cut off");
    assert!(done >= 12, "the workers worked: {done} done, {cut_off} cut off");
    database.drop().await;
}
