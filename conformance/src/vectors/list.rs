//! The one list of all vectors: what runs, and what the macro makes a test of.

use super::{
    Vector, attempts, clock, durations, expiry, fencing, isolation, lease, race, results, retransmission, table,
    unreadable, waiting,
};

/// Hands every vector to another macro: `module::name "rules" "what it checks"`.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_each_vector {
    ([$($callback:tt)+] $($extra:tt)*) => {
        $($callback)+! { $($extra)*
            table::claim_absent "C1" "a claim of an absent key is fresh, attempt 1";
            table::claim_expired "C5" "a claim of a completed record that has expired is fresh, attempt 1";
            table::claim_live_own "A3 A4" "a claim with the token of a live claim is acquired again, and changes nothing";
            table::claim_live_other "C3" "a claim of a live claim of another is in flight, and writes nothing";
            table::claim_live_other_request "C3" "so it is for another request, which learns the holder's fingerprint";
            table::claim_lapsed_own "A3" "a claim with the token of a lapsed claim is acquired again, with a new lease";
            table::claim_lapsed_same_request "C2" "a lapsed claim is taken over by the same request, attempt + 1";
            table::claim_lapsed_other_request "C2" "another request gets a mismatch, and nothing changes";
            table::claim_completed_own "C3" "a claim of a completed record gets the record, with its own token too";
            table::claim_completed_other "C3" "a claim of a completed record gets the record";
            table::claim_completed_other_request "C3" "so does another request, with the fingerprint to compare";
            table::claim_garbage "C4" "a record that does not decode is replaced";
            table::claim_newer "A10" "a record of a newer schema is refused and stays";
            table::claim_unknown_encoding "A10" "a record in an unknown encoding is refused and stays";
            table::complete_absent "F1" "a completion of an absent key is fenced";
            table::complete_expired "F1" "a completion of an expired record is fenced, with its own token too";
            table::complete_live_own "F1" "the holder completes";
            table::complete_live_other "F1 A4" "another is fenced, and nothing changes";
            table::complete_lapsed_own "F1" "a holder that lapsed and was not taken over completes";
            table::complete_lapsed_other "F1 A4" "another is fenced, and nothing changes";
            table::complete_completed_own "A3 F2" "a completion sent again is applied, and changes nothing";
            table::complete_completed_other "F1 F2" "another is fenced, and nothing changes";
            table::complete_garbage "F1" "a completion of a record that does not decode is fenced";
            table::complete_newer "A10" "a record of a newer schema is refused and stays";
            table::complete_unknown_encoding "A10" "a record in an unknown encoding is refused and stays";
            table::renew_absent "F1" "a renewal of an absent key is fenced";
            table::renew_expired "F1" "a renewal of an expired record is fenced, with its own token too";
            table::renew_live_own "R1" "the holder renews";
            table::renew_live_other "A4" "another is fenced, and nothing changes";
            table::renew_lapsed_own "R2" "a holder that lapsed and was not taken over renews";
            table::renew_lapsed_other "A4" "another is fenced, and nothing changes";
            table::renew_completed_own "A3" "a renewal of the own completion is told so";
            table::renew_completed_other "A4" "another is fenced, and nothing changes";
            table::renew_garbage "A4" "a renewal of a record that does not decode is fenced";
            table::renew_newer "A10" "a record of a newer schema is refused and stays";
            table::renew_unknown_encoding "A10" "a record in an unknown encoding is refused and stays";
            table::release_absent "L1" "a release of an absent key is not held";
            table::release_expired "L1" "a release of an expired record is not held, with its own token too";
            table::release_live_own "L1" "the holder releases, and the next claim is fresh";
            table::release_live_other "L1 A4" "another does not hold it, and nothing changes";
            table::release_lapsed_own "L1" "a holder that lapsed and was not taken over releases";
            table::release_lapsed_other "L1 A4" "another does not hold it, and nothing changes";
            table::release_completed_own "L1 F2" "a completed record is never released";
            table::release_completed_other "L1 F2" "nor by another";
            table::release_garbage "L1" "a record that does not decode is not held";
            table::release_newer "A10" "a record of a newer schema is refused and stays";
            table::release_unknown_encoding "A10" "a record in an unknown encoding is refused and stays";

            retransmission::retransmitted_claim "A3 R1" "a claim sent again, with a longer or a shorter lease, leaves the lease as it was";
            retransmission::retransmitted_take_over "A3" "a take-over sent again keeps its attempt";
            retransmission::retransmitted_complete "A3 F2" "a completion sent again with another result keeps the first";
            retransmission::retransmitted_release "A3 L1" "a release sent again finds nothing, also after another has claimed";
            retransmission::random_sequences "A1 A2 A3 A4 A5" "random requests of three executors, one after the other, are answered as the rules say";

            race::fresh_key_has_one_winner "C1 A1 A7" "200 claims of a fresh key at once, 175 times: one winner, who holds it";
            race::lapsed_key_has_one_winner "C1 C2 A7" "200 claims of a lapsed key at once, 175 times: one winner, attempt 2";
            race::expired_key_has_one_winner "C1 C5 A7" "200 claims of an expired record at once, 175 times: one winner, attempt 1";
            race::garbage_has_one_winner "C4" "50 claims of a record that does not decode at once, 175 times: one winner";
            race::claim_against_release "A1" "claims while the holder releases, 175 times: explained by some order";
            race::claim_against_renew "A1 R2" "claims while a lapsed holder renews, 175 times: explained by some order";
            race::claim_against_complete "A1 F1" "claims while a lapsed holder completes, 175 times: explained by some order";
            race::completions_at_once "A1 F2" "a completion sent six times at once, with six results, 175 times: one is kept";
            race::random_histories "A1" "ten random requests at once, and two after them, 175 times: explained by some order";

            fencing::fenced_complete "F1" "after a take-over the old holder's completion is fenced, and the new one's result is kept";
            fencing::fenced_renew "A4" "after a take-over the old holder's renewal is fenced, and prolongs nothing";
            fencing::fenced_release "L1" "after a take-over the old holder's release frees nothing";
            fencing::fenced_after_release "F1" "a released token can neither renew, complete nor release the next claim";
            fencing::fenced_after_recovery "C4 F1" "a claim that was spoiled and replaced is fenced";

            attempts::attempts_count_take_overs "C2" "each take-over is one attempt more, and tells others so";
            attempts::attempts_begin_anew "C5 L1" "after a release and after an expiry the attempt is 1";
            attempts::own_claim_keeps_its_attempt "A3 C2" "a lapsed take-over that is claimed again by its own token keeps its attempt";
            attempts::attempts_survive_renewal "R1" "a renewal leaves the attempt as it is";

            lease::lease_is_never_taken_early "A5 C6" "no lease is taken over before its end";
            lease::lease_is_taken_when_over "A5 C6" "a lease is over at its end, and the take-over margin";
            lease::lease_left_is_true "A5" "lease time left is what is left, to the holder and to others";
            lease::renewal_prolongs "R1" "a renewal prolongs a lease from now";
            lease::renewal_never_lowers "R1" "a renewal with a shorter lease leaves the longer one";
            lease::records_outlive_their_first_lease "C7 R1 F2" "what is renewed, completed or claimed again is not reaped by its first lease";
            lease::lapsed_claim_is_remembered "C7" "a claim that lapsed eight seconds ago is taken over, and not fresh";

            expiry::expiry_counts_from_completion "F2" "a result is replayed for its expiry, counted from its completion, and then no more";
            expiry::reading_does_not_prolong "F2" "replays, waits and repeated completions do not prolong an expiry";
            expiry::completed_never_changes "F2 A4" "a completed record is the same after anything that was asked of it";
            expiry::ages_are_true "A5" "a completed record tells how old it is and how long it stays";

            unreadable::unknown_fingerprint_live "C2" "a live claim of an unknown fingerprint version is in flight, with that version";
            unreadable::unknown_fingerprint_lapsed "C2" "a lapsed one is not taken over, not even by an equal one";
            unreadable::unknown_fingerprint_completed "C3" "a completed one is returned, with that version";
            unreadable::newer_record_stays "A10" "50 claims of a newer record at once leave it as it is";

            waiting::wait_for_completed "W1" "a wait for a completed record ends at once, with it";
            waiting::wait_for_vacant "W1" "a wait for an absent key, an expired record or a lapsed claim ends at once";
            waiting::wait_for_garbage "W1" "a wait for a record that does not decode ends at once: it can be claimed";
            waiting::wait_for_newer "A10" "a wait for a newer record is an error at once";
            waiting::wait_ends_with_completion "W2" "a completion from another handle ends a wait, with the record";
            waiting::wait_ends_with_release "W2" "a release from another handle ends a wait: vacant";
            waiting::wait_ends_with_the_lease "W3" "a wait does not outlive the lease: at its end the key is vacant";
            waiting::wait_outlives_a_renewed_lease "W3" "a wait goes on where the lease is renewed";
            waiting::wait_times_out "W3" "a wait of a live claim ends with its time-out, and tells what is left of the lease";
            waiting::wait_against_complete "W1 W2" "a wait that begins as the key is completed, 175 times: never sleeps through it";
            waiting::wait_against_release "W1 W2" "a wait that begins as the key is released, 175 times: never sleeps through it";
            waiting::wait_is_woken "W2" "where the store notifies, waiters wake at once; where not, with the next poll";
            waiting::wait_of_500 "W4" "500 waiters of one key on two handles all get its result";
            waiting::wait_of_many_for_a_vacant_key "W2" "50 waiters of a key that is released and that nobody claims all learn so";
            waiting::wait_dropped "A8 W4" "waits that are dropped leave the next one as good";

            results::result_of_0_bytes "A9" "an empty body comes back";
            results::result_of_1_byte "A9" "a body of one byte comes back";
            results::result_of_all_byte_values "A9" "a body of all 256 byte values comes back";
            results::result_of_64_kib "A9" "a body of 64 KiB comes back";
            results::result_of_300_kib "A9 F3" "a body of 300 KiB comes back, or is too large for a store that says so";
            results::result_of_1_mib "A9 F3" "so does one of 1 MiB";
            results::result_at_the_limit "F3" "a result of exactly the store's limit comes back";
            results::result_over_the_limit "F3" "one byte more is its own error with both sizes, and the claim stays";
            results::statuses "A9" "every kind of status comes back";
            results::outcomes "A9" "a recorded error is an error, and what is unavailable has no result";
            results::headers_repeated "A9" "repeated header values come back in their order";
            results::headers_empty "A9" "no headers, and headers without a value, come back";
            results::headers_many "A9" "hundreds of headers, a name of 1,000 bytes and a value of 16 KiB come back";
            results::headers_non_ascii "A9" "header values of any bytes come back";
            results::headers_like_expressions "A9" "names and values that look like an expression of some store are data";

            durations::lease_of_a_millisecond "A5" "the shortest lease is a lease, and leaves the store usable";
            durations::lease_of_ten_years "A5" "the longest lease is not over";
            durations::expiry_of_a_millisecond "F2" "the shortest expiry is soon over";
            durations::expiry_of_ten_years "F2" "the longest expiry is not over";
            durations::wait_of_a_millisecond "W3" "the shortest wait ends";

            clock::an_hour_ahead "A5" "a host whose clock is an hour ahead decides as others do, where its clock does not decide";
            clock::an_hour_behind "A5" "so does one whose clock is an hour behind";
            clock::skew_within_the_bound "A5" "clients whose clocks differ by the declared bound take nothing that lives";
            clock::skew_beyond_the_bound "A5 F1" "beyond the bound a live claim is taken, where the client's clock decides, and only there; the loser is fenced";

            isolation::namespaces_do_not_meet "A11" "the same key in two namespaces is two keys";
            isolation::keys_do_not_meet "A2" "1,000 keys keep their own records";
            isolation::keys_differ_in_every_byte "A2" "keys that differ in one bit are different";
            isolation::tokens_differ_in_every_byte "A3 A4 F1 L1" "a token that differs in one bit is another's";
            isolation::fingerprints_differ_in_every_byte "C2" "a fingerprint that differs in one bit, or in its version, is another request's";
            isolation::dropped_claim "A8" "a claim that is dropped half-way leaves the store usable, and can be sent again";
            isolation::dropped_complete "A8" "so does a completion";
            isolation::dropped_renew "A8" "so does a renewal";
            isolation::dropped_release "A8" "so does a release";
        }
    };
}

macro_rules! registry {
    ($($module:ident::$name:ident $rules:literal $checks:literal;)+) => {
        /// All vectors, in the order in which they are reported.
        pub(crate) static VECTORS: &[Vector] = &[$(
            Vector {
                name: stringify!($name),
                rules: $rules,
                checks: $checks,
                races: matches!(stringify!($module).as_bytes(), b"race"),
                run: |case| Box::pin($module::$name(case)),
            },
        )+];
    };
}

__for_each_vector! { [registry] }
