#![doc = include_str!("../README.md")]
mod case;
mod factory;
mod history;
mod mirror;
mod model;
mod report;
mod suite;
mod vectors;

pub use self::{
    factory::{BoxError, Factory, Opening, Spoil, Spoiled},
    report::{Report, VectorReport, Verdict},
    suite::{Suite, vector_names},
};

/// Runs all vectors on the stores of `factory`, and tells what each of them saw.
///
/// The store passes where [`Report::passed`]. For a choice of vectors there is [`Suite`], and for a test of each vector
/// [`conformance_tests!`]. Must be called in a tokio runtime.
pub async fn run(factory: impl Factory) -> Report {
    Suite::new(factory).run().await
}

/// Runs one vector and ends the test unless the store passes, or declares why the vector does not apply to it: what
/// [`conformance_tests!`] makes its tests of.
///
/// # Panics
/// With the report, where the store fails.
pub async fn run_vector(name: &str, factory: impl Factory) {
    let report = Suite::new(factory).only([name]).run().await;
    assert!(report.failures().next().is_none(), "{report}");
    println!("{report}");
}

/// Makes a `#[tokio::test]` of each vector. The argument is an expression that makes a [`Factory`]; it is evaluated for
/// each test.
///
/// The crate needs tokio's features `macros` and `rt-multi-thread` in its development dependencies. Two suites in one
/// file go into a module each.
///
/// ```
/// # use idemkit_conformance::{BoxError, Factory, Opening, Spoil, Spoiled, conformance_tests};
/// # struct Mine;
/// # #[async_trait::async_trait]
/// # impl Factory for Mine {
/// #     async fn open(&self, _: &Opening) -> Result<std::sync::Arc<dyn idemkit_core::Store>, BoxError> {
/// #         Ok(std::sync::Arc::new(idemkit_core::MemoryStore::new()))
/// #     }
/// #     async fn spoil(&self, _: &str, _: &idemkit_core::EffectiveKey, _: Spoil) -> Result<Spoiled, BoxError> {
/// #         Ok(Spoiled::Impossible("it holds no bytes"))
/// #     }
/// #     async fn clean_up(&self, _: &str) -> Result<(), BoxError> { Ok(()) }
/// # }
/// # fn main() {}
/// mod my_store {
/// #   use super::*;
///     conformance_tests!(Mine);
/// }
/// ```
#[macro_export]
macro_rules! conformance_tests {
    ($factory:expr $(,)?) => {
        $crate::__for_each_vector! { [$crate::__tests] [$factory] }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    ([$factory:expr] $($module:ident::$name:ident $rules:literal $checks:literal;)+) => {$(
        #[doc = $checks]
        #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            $crate::run_vector(::core::stringify!($name), $factory).await;
        }
    )+};
}
