//! How a completion in the caller's own transaction ends: the same for every store that has transactions.

use crate::CompletedRecord;

/// How a transaction ended that was to complete a claim, together with writes of the caller's.
///
/// The value is what the caller's closure returned, where a store takes a closure.
///
/// ```
/// use idemkit_core::Transacted;
///
/// fn answer(done: Transacted<u32>) -> String {
///     match done {
///         Transacted::Committed(order) => format!("order {order} is placed"),
///         Transacted::AlreadyCompleted(record) => format!("it was placed {:?} ago", record.age),
///         Transacted::Fenced => "another one has taken it over".to_owned(),
///     }
/// }
/// assert_eq!(answer(Transacted::Committed(7)), "order 7 is placed");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "only what is committed was applied"]
pub enum Transacted<T = ()> {
    /// All of it was applied: the caller's writes, and the completion.
    Committed(T),
    /// Nothing was applied, since the operation is done: here is what it ended with. So it is when a transaction whose
    /// acknowledgement was lost is run again.
    AlreadyCompleted(CompletedRecord),
    /// Nothing was applied, since the claim is another's now, or nobody's.
    Fenced,
}

/// What became of a completion inside a transaction of the caller's own, which the caller commits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "where it is not completed the transaction cannot commit"]
pub enum InTransaction {
    /// The record is completed, once the transaction commits.
    Completed,
    /// The operation is done: here is what it ended with. The transaction cannot commit any more.
    AlreadyCompleted(CompletedRecord),
    /// The claim is another's now, or nobody's. The transaction cannot commit any more.
    Fenced,
}
