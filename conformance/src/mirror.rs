//! One key of a store beside the same key as the rules have it: each request goes to both, and the answers must agree.

use std::time::Duration;

use idemkit_core::{ClaimToken, EffectiveKey, Record};

use crate::{
    case::{Case, Checked, Handle, INSTANT, LONG, SHORT, claim, complete, result},
    factory::Spoil,
    model::{Model, Op, Reply},
};

/// What a key is brought to before something is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Absent,
    Expired,
    Live,
    Lapsed,
    Completed,
    Garbage,
    Newer,
    UnknownEncoding,
}

impl Condition {
    /// Those that any store can be brought to.
    pub(crate) const READABLE: [Self; 5] = [Self::Absent, Self::Expired, Self::Live, Self::Lapsed, Self::Completed];
}

/// A key in the store and in the model.
pub(crate) struct Mirror<'c> {
    case: &'c Case,
    pub(crate) key: EffectiveKey,
    pub(crate) model: Model,
    /// The token of whoever brought the key to its condition.
    pub(crate) holder: ClaimToken,
}

impl<'c> Mirror<'c> {
    pub(crate) fn new(case: &'c Case, key: EffectiveKey) -> Self {
        Self { case, key, model: Model::new(case.capabilities.take_over_margin), holder: case.token() }
    }

    /// Brings the key to `condition`; [`pass`](Self::pass) must follow, once for any number of keys.
    pub(crate) async fn prepare(&mut self, condition: Condition) -> Checked {
        let (case, holder) = (self.case, self.holder);
        match condition {
            Condition::Absent => {}
            Condition::Live => _ = self.step(&case.a, claim(holder, LONG)).await?,
            Condition::Lapsed => _ = self.step(&case.a, claim(holder, SHORT)).await?,
            Condition::Completed | Condition::Expired => {
                let expires_after = if condition == Condition::Completed { LONG } else { INSTANT };
                self.step(&case.a, claim(holder, LONG)).await?;
                self.step(&case.a, complete(holder, result("recorded"), expires_after)).await?;
            }
            Condition::Garbage => self.spoil(Spoil::Garbage, Record::Garbage).await?,
            Condition::Newer => self.spoil(Spoil::NewerSchema, Record::Newer).await?,
            Condition::UnknownEncoding => self.spoil(Spoil::UnknownEncoding, Record::Newer).await?,
        }
        Ok(())
    }

    async fn spoil(&mut self, with: Spoil, becomes: Record) -> Checked {
        self.case.spoil(&self.key, with).await?;
        self.model.record = Some(becomes);
        Ok(())
    }

    /// Lets the short lease of the preparation lapse, and its short expiry pass.
    pub(crate) async fn pass(&mut self) {
        self.case.pass(SHORT).await;
        self.has_passed();
    }

    /// As [`pass`](Self::pass), where it was waited for already.
    pub(crate) fn has_passed(&mut self) {
        let more = Duration::from_secs(1);
        self.model.now = self.model.now.saturating_add(SHORT + self.case.capabilities.take_over_margin + more);
    }

    /// Sends a request that must be answered as the rules say.
    pub(crate) async fn step(&mut self, handle: &Handle, op: Op) -> Checked<Reply> {
        let expected = self.model.apply(&op);
        handle.must(&self.key, &op, &expected).await
    }
}
