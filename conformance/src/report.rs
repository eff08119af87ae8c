//! What a run of the suite has seen.

use std::{fmt, time::Duration};

use serde::Serialize;

/// The outcome of a run: one entry a vector, in the order of the suite.
///
/// `Display` is for people; [`to_json`](Self::to_json) is for machines.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The store's name, from its capabilities.
    pub store: String,
    /// Whose clock decides, as the store declares it.
    pub clock: String,
    /// What became of each vector.
    pub vectors: Vec<VectorReport>,
}

/// What became of one vector.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct VectorReport {
    /// The vector's name.
    pub vector: &'static str,
    /// The rules of the contract that it checks, as numbered at [`Store`](idemkit_core::Store).
    pub rules: &'static str,
    /// What it checks, in a sentence.
    pub checks: &'static str,
    /// How it ended.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Where it was run anew because the server stalled: each request that was held up, or had no answer in all the time that
    /// it may take, one a run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stalls: Vec<String>,
    /// How long it took, the last time.
    #[serde(rename = "took_ms", serialize_with = "as_millis")]
    pub took: Duration,
}

/// How a vector ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// The store does what the contract says.
    Passed,
    /// It does not.
    Failed {
        /// What was expected and seen.
        seen: String,
        /// What was asked of the store before, and answered.
        steps: Vec<String>,
        /// Where the vector's records are: they were left for a look.
        namespace: String,
    },
    /// There was nothing to check.
    NotApplicable {
        /// Why not, as the store or its factory declares it.
        reason: String,
    },
}

impl Report {
    /// Whether nothing failed, and something passed: a run of no vectors shows nothing.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures().next().is_none() && self.vectors.iter().any(|vector| vector.verdict == Verdict::Passed)
    }

    /// The vectors that failed.
    pub fn failures(&self) -> impl Iterator<Item = &VectorReport> {
        self.vectors.iter().filter(|vector| matches!(vector.verdict, Verdict::Failed { .. }))
    }

    /// The report as JSON: `store`, `clock`, and `vectors`, each with `vector`, `rules`, `checks`, `verdict` (`passed`,
    /// `failed` with `seen`, `steps` and `namespace`, or `not_applicable` with `reason`), `took_ms`, and `stalls` where it was run
    /// anew.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings and numbers only: there is nothing in it that cannot be written.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Ends the test unless the store [passed](Self::passed).
    ///
    /// # Panics
    /// With the report, where something failed or nothing was checked: this is what a failed test does.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.passed(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "store {}, clock {}", self.store, self.clock)?;
        let (mut passed, mut failed, mut not_applicable) = (0_usize, 0_usize, 0_usize);
        for vector in &self.vectors {
            match vector.verdict {
                Verdict::Passed => passed += 1,
                Verdict::Failed { .. } => failed += 1,
                Verdict::NotApplicable { .. } => not_applicable += 1,
            }
            writeln!(f, "{vector}")?;
        }
        write!(f, "{passed} passed, {failed} failed, {not_applicable} not applicable")?;
        if self.vectors.is_empty() { f.write_str(": no vector was selected, so nothing was shown") } else { Ok(()) }
    }
}

impl fmt::Display for VectorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, millis) = (self.verdict.word(), self.took.as_millis());
        write!(f, "{word:<14} {:<42} {millis:>6} ms  [{}] {}", self.vector, self.rules, self.checks)?;
        self.stalls.iter().try_for_each(|stall| write!(f, "\n    run anew, since the server stalled: {stall}"))?;
        match &self.verdict {
            Verdict::Passed => Ok(()),
            Verdict::NotApplicable { reason } => write!(f, "\n    because {reason}"),
            Verdict::Failed { seen, steps, namespace } => {
                write!(f, "\n    {seen}\n    steps before it, in namespace {namespace}:")?;
                steps.iter().try_for_each(|step| write!(f, "\n      {step}"))
            }
        }
    }
}

impl Verdict {
    fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed { .. } => "FAILED",
            Self::NotApplicable { .. } => "not applicable",
        }
    }
}

fn as_millis<S: serde::Serializer>(took: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(took.as_millis()).unwrap_or(u64::MAX))
}
