//! The proof on one server: 64 tasks in 4 processes, 10,000 keys that all of them want, and each operation runs once.

use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use idemkit_core::{Begin, Engine, Fingerprint, Policy, StoredResult};
use idemkit_redis::RedisStore;
use tokio::{process::Command, task::JoinSet};

use crate::support::{connect, key, own, patient};

const URL: &str = "IDEMKIT_INTERLEAVE_TEST_URL";
const PROCESSES: usize = 4;
const TASKS: usize = 16;
const KEYS: usize = 10_000;
const LASTS: Duration = Duration::from_secs(60);

/// One process: its tasks ask for keys at random until the time is over, and then for those that chance left out: many,
/// where the machine is slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a part of sixty_four_tasks_in_four_processes_run_each_of_ten_thousand_operations_once, which runs it"]
async fn process() {
    let url = std::env::var(URL).unwrap();
    // Nothing gives up on a machine that is busy with other tests.
    let long = Duration::from_secs(300);
    let policy = Policy::builder().lease(long).wait(long).store_deadline(long).complete_budget(long).build().unwrap();
    let store = patient(RedisStore::builder().url(&url)).build().unwrap();
    let engine = Arc::new(Engine::builder(store).policy(policy).build());
    let asked: Arc<Vec<AtomicBool>> = Arc::new((0..KEYS).map(|_| AtomicBool::default()).collect());
    let effects = connect(&url).await;
    let until = Instant::now() + LASTS;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (engine, asked, mut effects) = (Arc::clone(&engine), Arc::clone(&asked), effects.clone());
        tasks.spawn(async move {
            let (mut executed, mut replayed) = (0_u64, 0_u64);
            let mut left = (task..KEYS).step_by(TASKS);
            loop {
                let at_random = (Instant::now() < until).then(|| fastrand::usize(..KEYS));
                let next = at_random.or_else(|| left.find(|number| !asked[*number].load(Ordering::Relaxed)));
                let Some(number) = next else { break };
                asked[number].store(true, Ordering::Relaxed);
                match engine.begin(key(&number.to_string()), Fingerprint::of_payload("request")).await {
                    Begin::Proceed(guard) => {
                        let mut count = redis::cmd("INCR");
                        let times: u64 = count.arg(format!("effect {number}")).query_async(&mut effects).await.unwrap();
                        assert_eq!(times, 1, "operation {number} ran {times} times");
                        let result = StoredResult::new(200, number.to_string());
                        assert!(matches!(guard.complete(result).await, idemkit_core::Completion::Recorded));
                        executed += 1;
                    }
                    Begin::Replay(replay) => {
                        assert_eq!(replay.result.body, number.to_string());
                        replayed += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            (executed, replayed)
        });
    }
    let (mut executed, mut replayed) = (0, 0);
    while let Some(done) = tasks.join_next().await {
        let (one, other) = done.unwrap();
        (executed, replayed) = (executed + one, replayed + other);
    }
    println!("\nprocess: {executed} {replayed}");
}

#[tokio::test]
async fn sixty_four_tasks_in_four_processes_run_each_of_ten_thousand_operations_once() {
    let server = own(&[]);
    let mut processes = JoinSet::new();
    for _ in 0..PROCESSES {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["interleave::process", "--exact", "--ignored", "--nocapture"]).env(URL, server.url());
        processes.spawn(command.stdout(Stdio::piped()).kill_on_drop(true).output());
    }
    let (mut executed, mut replayed) = (0, 0);
    while let Some(done) = processes.join_next().await {
        let output = done.unwrap().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
        let counts = said.lines().find_map(|line| line.strip_prefix("process: ")).unwrap();
        let (one, other) = counts.split_once(' ').unwrap();
        executed += one.parse::<u64>().unwrap();
        replayed += other.parse::<u64>().unwrap();
    }
    println!("{executed} executed, {replayed} replayed");
    let mut server = connect(&server.url()).await;
    let effects: Vec<String> = redis::cmd("KEYS").arg("effect *").query_async(&mut server).await.unwrap();
    assert_eq!(executed, u64::try_from(effects.len()).unwrap());
    let counts: Vec<u64> = redis::cmd("MGET").arg(&effects).query_async(&mut server).await.unwrap();
    assert!(counts.iter().all(|count| *count == 1), "each ran once");
    assert!(
        executed == KEYS as u64 && replayed > executed,
        "all keys were wanted, and more than once: {executed}, {replayed}"
    );
}
