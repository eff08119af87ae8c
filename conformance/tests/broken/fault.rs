//! What can be wrong with a store, and the vector that is there to find it.

/// One way to break the memory store, and the vector named for it.
macro_rules! faults {
    ($($(#[doc = $doc:literal])+ $fault:ident => $vector:ident;)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Fault {
            /// Nothing: the wrapper itself is sound.
            None,
            $($(#[doc = $doc])+ $fault,)+
        }

        /// Each fault with its vector.
        pub(crate) const FAULTS: &[(Fault, &str)] = &[$((Fault::$fault, stringify!($vector)),)+];
    };
}

faults! {
    /// A claim reads, yields, and writes what it decided before.
    ReadThenWrite => fresh_key_has_one_winner;
    /// So it does for a lapsed key alone.
    ReadThenWriteLapsed => lapsed_key_has_one_winner;
    /// So it does for an expired record alone.
    ReadThenWriteExpired => expired_key_has_one_winner;
    /// So it does for one key in ten.
    ReadThenWriteRarely => fresh_key_has_one_winner;
    /// Garbage is overwritten without looking whether it is still what was seen.
    GarbageOverwritten => garbage_has_one_winner;
    /// A completion reads, yields, and writes.
    CompleteReadThenWrite => completions_at_once;
    /// A renewal reads, yields, and writes.
    RenewReadThenWrite => claim_against_renew;
    /// A release reads, yields, and deletes.
    ReleaseReadThenWrite => claim_against_release;
    /// Any token completes.
    CompleteUnfenced => fenced_complete;
    /// Any token renews.
    RenewUnfenced => fenced_renew;
    /// Any token releases.
    ReleaseUnfenced => fenced_release;
    /// Each replay prolongs the expiry.
    ExpiryProlonged => reading_does_not_prolong;
    /// The expiry is counted from the claim.
    ExpiryFromClaim => expiry_counts_from_completion;
    /// A lease is judged by the caller's clock, and another is declared.
    CallersClock => an_hour_ahead;
    /// A lease is written by the caller's clock, and another is declared.
    CallersClockWrites => an_hour_behind;
    /// The clients' clocks are declared, with a bound that is not kept.
    BoundNotKept => skew_within_the_bound;
    /// The clients' clocks are declared, and do not decide.
    ClockNotUsed => skew_beyond_the_bound;
    /// A take-over calls itself fresh.
    LapsedIsFresh => claim_lapsed_same_request;
    /// A claim with the own token is in flight.
    OwnClaimRefused => retransmitted_claim;
    /// A take-over sent again counts once more.
    OwnTakeOverCounted => retransmitted_take_over;
    /// A claim sent again prolongs its lease.
    OwnClaimProlongs => retransmitted_claim;
    /// A completion with the own token is fenced.
    OwnCompletionRefused => retransmitted_complete;
    /// A completed record is overwritten by its own token.
    CompletedOverwritten => completed_never_changes;
    /// A completed record is released by its own token.
    CompletedReleased => release_completed_own;
    /// A holder that lapsed can no longer complete.
    LapsedFenced => complete_lapsed_own;
    /// A wake-up is lost between the look and the subscription, and nothing polls.
    WakeUpLost => wait_against_complete;
    /// The wait goes on when the lease is over.
    WaitOutlivesLease => wait_ends_with_the_lease;
    /// The wait ends when the lease that it first saw does.
    RenewalUnseen => wait_outlives_a_renewed_lease;
    /// Notices are declared, and only a poll finds out.
    NoticeMissing => wait_is_woken;
    /// Completions are notified, and releases are not.
    ReleaseNotNoticed => wait_is_woken;
    /// A wait that times out does not say what is left of the lease.
    LeftUntold => wait_times_out;
    /// A dropped wait takes the notices of all others with it.
    DroppedWaitDeafens => wait_dropped;
    /// A body ends at its first NUL.
    CutAtNul => result_of_all_byte_values;
    /// A body is kept as text.
    BodyAsText => result_of_all_byte_values;
    /// A repeated header keeps its last value.
    HeadersDeduplicated => headers_repeated;
    /// A header's value is kept as text.
    HeadersAsText => headers_non_ascii;
    /// Values that begin with a dollar sign are read as expressions.
    DollarEvaluated => headers_like_expressions;
    /// The headers beyond the twentieth are lost.
    HeadersCut => headers_many;
    /// The name of a header is cut at 255 bytes.
    HeaderNameCut => headers_many;
    /// The body of an error is cut at 1 KiB.
    ErrorCut => outcomes;
    /// A status is kept in 16 bits with a sign.
    StatusSigned => statuses;
    /// An error is replayed as a result.
    ErrorAsResult => outcomes;
    /// A result that is too large is refused after the claim was given up.
    TooLargeLosesClaim => result_over_the_limit;
    /// What is too large is taken where it is an error.
    ErrorsUnlimited => result_over_the_limit;
    /// A completion that is refused as too large prolongs the lease.
    TooLargeProlongs => result_over_the_limit;
    /// A completion that is refused as too large says that it may have been applied.
    TooLargeUnknown => result_over_the_limit;
    /// No limit is declared, and there is one.
    LimitNotDeclared => result_of_1_mib;
    /// The limit is smaller than declared.
    LimitLower => result_at_the_limit;
    /// The attempt is always 1.
    AttemptNotCounted => attempts_count_take_overs;
    /// The attempt goes on counting after a release.
    AttemptOutlivesClaim => attempts_begin_anew;
    /// A lapsed take-over that is claimed again by its own token is attempt 1.
    OwnLapsedBeginsAnew => own_claim_keeps_its_attempt;
    /// A renewal is of an hour at most.
    RenewalCapped => lease_of_ten_years;
    /// The record is reaped when its first lease and the grace are over, though it was renewed.
    FirstLeaseReaps => records_outlive_their_first_lease;
    /// A lapsed claim is reaped after three seconds.
    LapsedForgotten => lapsed_claim_is_remembered;
    /// The last byte of a key is not looked at.
    KeyCut => keys_differ_in_every_byte;
    /// The last byte of a token is not looked at.
    TokenCut => tokens_differ_in_every_byte;
    /// The last byte of a completion's token is not looked at.
    CompletionTokenCut => tokens_differ_in_every_byte;
    /// The last byte of a fingerprint is not looked at.
    FingerprintCut => fingerprints_differ_in_every_byte;
    /// The version of a fingerprint is not looked at.
    VersionNotCompared => fingerprints_differ_in_every_byte;
    /// A renewal sets the lease, even to an earlier end.
    RenewalLowers => renewal_never_lowers;
    /// A lease ends after half its time.
    LeaseHalved => lease_is_never_taken_early;
    /// The declared margin is not kept.
    MarginIgnored => lease_is_never_taken_early;
    /// A lapsed claim is taken over five seconds late.
    LeaseTooLong => lease_is_taken_when_over;
    /// What is left of a lease is told as the whole of it.
    LeaseLeftIsWhole => lease_left_is_true;
    /// A record's age is told as nothing.
    AgeIsZero => ages_are_true;
    /// A lapsed claim is taken over whatever the request.
    FingerprintIgnored => claim_lapsed_other_request;
    /// Equal fingerprints of an unknown version match.
    UnknownVersionMatches => unknown_fingerprint_lapsed;
    /// The version of a fingerprint is not stored.
    VersionForgotten => unknown_fingerprint_completed;
    /// A record of a newer schema is taken for garbage.
    NewerOverwritten => claim_newer;
    /// Losing a race is an error.
    ContentionShown => fresh_key_has_one_winner;
    /// A claim that is dropped half-way leaves its key locked.
    DroppedClaimLocks => dropped_claim;
    /// All namespaces are one.
    OneNamespace => namespaces_do_not_meet;
    /// A panic in the store.
    Panics => claim_absent;
    /// A renewal that is never answered.
    Hangs => renew_live_own;
}
