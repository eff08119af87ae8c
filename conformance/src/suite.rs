//! Running vectors, and gathering what they saw.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    case::{Answering, Case, Checked, Steps, Stop, chain},
    factory::{Factory, Opening},
    report::{Report, VectorReport, Verdict},
    vectors::{VECTORS, Vector},
};

/// How many vectors run at once: most of them only let time pass.
const CONCURRENCY: u32 = 16;
/// A vector that takes longer has failed.
const VECTOR_DEADLINE: Duration = Duration::from_secs(300);
/// How many times vectors of one run may be run anew because the server stalled: as many as one stall may be in the way of. A store
/// that hangs now and then has more.
const ANEW_MAX: u32 = CONCURRENCY;

/// The suite, with a choice of vectors.
///
/// ```no_run
/// # async fn example(factory: impl idemkit_conformance::Factory) {
/// let report = idemkit_conformance::Suite::new(factory).only(["claim_absent", "fenced_complete"]).run().await;
/// println!("{report}");
/// # }
/// ```
pub struct Suite {
    factory: Arc<dyn Factory>,
    only: Option<Vec<String>>,
    concurrency: u32,
}

impl Suite {
    /// All vectors, on the stores of `factory`.
    #[must_use]
    pub fn new(factory: impl Factory) -> Self {
        Self { factory: Arc::new(factory), only: None, concurrency: CONCURRENCY }
    }

    /// Only the vectors of these names. A name that does not exist fails in the report, and so does an empty choice.
    #[must_use]
    pub fn only(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.only = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// How many vectors run at once (default 16; at least one does).
    #[must_use]
    pub fn concurrency(mut self, vectors: u32) -> Self {
        self.concurrency = vectors.max(1);
        self
    }

    /// Runs the vectors, each in a namespace of its own.
    ///
    /// A vector that fails, panics or does not end within five minutes is a [failure](Verdict::Failed) in the report
    /// and stops no other. One that fails, is no race, and ran while a request of any vector took half a second or more, or ended as
    /// *unavailable* only when its whole lease was over, says more of a server that stalled than of the store: it is run anew, sixteen
    /// times in all of a run, and [tells so](VectorReport::stalls). Dropping the future stops all of them; what they made is then left behind. Must be called in
    /// a tokio runtime.
    pub async fn run(self) -> Report {
        let (store, clock) = describe(&*self.factory).await;
        let mut vectors = vec![];
        let (concurrency, permits) = (self.concurrency, Arc::new(Semaphore::new(self.concurrency as usize)));
        let anew = Arc::new(Semaphore::new(ANEW_MAX as usize));
        let answering = Answering::default();
        let mut tasks = JoinSet::new();
        for vector in self.selected() {
            let place = vectors.len();
            match vector {
                Ok(vector) => {
                    let (factory, permits, anew) = (Arc::clone(&self.factory), Arc::clone(&permits), Arc::clone(&anew));
                    let answering = answering.clone();
                    tasks.spawn(async move {
                        // A race is alone: what it does to the server would be in the way of what others measure.
                        let wanted = if vector.races { concurrency } else { 1 };
                        let _permits = permits.acquire_many_owned(wanted).await;
                        (place, run_vector(&factory, vector, &answering, &anew).await)
                    });
                    vectors.push(None);
                }
                Err(name) => vectors.push(Some(unknown(&name))),
            }
        }
        while let Some(ended) = tasks.join_next().await {
            // The task itself does not panic: the vector ran in another.
            if let Ok((place, report)) = ended {
                vectors[place] = Some(report);
            }
        }
        Report { store, clock, vectors: vectors.into_iter().flatten().collect() }
    }

    fn selected(&self) -> Vec<Result<&'static Vector, String>> {
        let Some(names) = &self.only else { return VECTORS.iter().map(Ok).collect() };
        names.iter().map(|name| VECTORS.iter().find(|vector| vector.name == name).ok_or_else(|| name.clone())).collect()
    }
}

impl std::fmt::Debug for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Suite")
            .field("only", &self.only)
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}

/// What the store says of itself: its name, and whose clock decides.
async fn describe(factory: &dyn Factory) -> (String, String) {
    let namespace = namespace();
    let opened = factory.open(&Opening::new(namespace.clone())).await;
    // What cannot be opened or cleaned up here fails in every vector, with its reason.
    let _ = factory.clean_up(&namespace).await;
    match opened.map(|store| store.capabilities()) {
        Ok(capabilities) => (capabilities.store.to_owned(), format!("{:?}", capabilities.clock)),
        Err(error) => ("?".to_owned(), format!("unknown, the factory failed: {}", chain(&*error))),
    }
}

/// The names of all vectors, in the order of the suite.
pub fn vector_names() -> impl Iterator<Item = &'static str> {
    VECTORS.iter().map(|vector| vector.name)
}

/// Runs a vector, and anew where a server that stalled was in its way.
///
/// A lease of a second ends within a server's pause of a second, and then says nothing of the store. Not so in a race, whose leases
/// outlive it: a request that ends nowhere there is what the race looks for.
async fn run_vector(
    factory: &Arc<dyn Factory>,
    vector: &'static Vector,
    answering: &Answering,
    anew: &Semaphore,
) -> VectorReport {
    let mut stalls = vec![];
    loop {
        let (began, steps) = (Instant::now(), Steps::new(answering.clone()));
        let mut report = run_once(factory, vector, &steps).await;
        if let Verdict::Failed { namespace, .. } = &report.verdict
            && !vector.races
            && let Some(stall) = answering.stalled_since(began)
            && let Ok(permit) = anew.try_acquire()
        {
            permit.forget();
            stalls.push(stall);
            // Where that fails it fails after the next run too, and is reported then.
            let _ = factory.clean_up(namespace).await;
            continue;
        }
        report.stalls = stalls;
        return report;
    }
}

async fn run_once(factory: &Arc<dyn Factory>, vector: &'static Vector, steps: &Steps) -> VectorReport {
    let (namespace, started) = (namespace(), Instant::now());
    // In a task of its own, which catches a panic of the store.
    let mut task = JoinSet::new();
    task.spawn(perform(Arc::clone(factory), vector, namespace.clone(), steps.clone()));
    let ended = match timeout(VECTOR_DEADLINE, task.join_next()).await {
        Err(_) => Err(Stop::Failed(format!("it did not end within {VECTOR_DEADLINE:?}"))),
        Ok(Some(Ok(ended))) => ended,
        Ok(Some(Err(error))) => Err(Stop::Failed(format!("it panicked: {error}"))),
        Ok(None) => Ok(()),
    };
    let verdict = match ended {
        Ok(()) => Verdict::Passed,
        Err(Stop::NotApplicable(reason)) => Verdict::NotApplicable { reason },
        Err(Stop::Failed(seen)) => Verdict::Failed { seen, steps: steps.take(), namespace },
    };
    let Vector { name, rules, checks, .. } = *vector;
    VectorReport { vector: name, rules, checks, verdict, stalls: vec![], took: started.elapsed() }
}

async fn perform(factory: Arc<dyn Factory>, vector: &'static Vector, namespace: String, steps: Steps) -> Checked {
    let case = Case::open(factory, namespace, steps).await?;
    match (vector.run)(&case).await {
        Err(Stop::Failed(seen)) => return Err(Stop::Failed(seen)),
        Err(Stop::NotApplicable(reason)) => {
            case.clean_up(&case.namespace).await?;
            return Err(Stop::NotApplicable(reason));
        }
        Ok(()) => {}
    }
    case.clean_up(&case.namespace).await
}

fn unknown(name: &str) -> VectorReport {
    let verdict =
        Verdict::Failed { seen: format!("there is no vector `{name}`"), steps: vec![], namespace: String::new() };
    let (vector, checks) = ("?", "the choice of vectors");
    VectorReport { vector, rules: "", checks, verdict, stalls: vec![], took: Duration::ZERO }
}

/// A namespace that no other run has, whether in this process or another.
fn namespace() -> String {
    static RUN: OnceLock<u32> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // The seeds of the standard library's maps come from the operating system.
    let run = RUN.get_or_init(|| (RandomState::new().build_hasher().finish() >> 32) as u32);
    format!("ct_{run:08x}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
