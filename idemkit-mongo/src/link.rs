//! Commands, each tried again while that may help: with the same token, each of a store's may be sent again.

use std::time::Duration;

use futures_util::TryStreamExt as _;
use idemkit_core::{Applied, EffectiveKey, Record, StoreError, Timestamp};
use mongodb::{
    ClientSession, Collection,
    bson::{Bson, DateTime, Document, doc},
    error::Error,
    options::{ReadConcern, ReadPreference, SelectionCriteria, WriteConcern},
};
use tokio::time::sleep;

use crate::{
    classify::{Meaning, classify, meaning},
    document, pipeline,
};

/// How often a command is sent in all, where it may succeed in a moment.
const TRIES: u32 = 8;
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(400);

/// Where records are, and how they are written and read.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) collection: Collection<Document>,
    pub(crate) write_concern: WriteConcern,
    pub(crate) read_concern: ReadConcern,
    /// What the server gets for one command.
    pub(crate) command_within: Duration,
}

/// A document as it was seen.
pub(crate) struct Seen {
    /// By the server's clock.
    pub(crate) now: Timestamp,
    pub(crate) document: Option<Document>,
}

impl Seen {
    pub(crate) fn record(&self) -> Option<Record> {
        self.document.as_ref().map(document::decode)
    }
}

/// What an update has left.
pub(crate) struct Modified {
    /// The document after it; nothing where none matched.
    pub(crate) after: Option<Document>,
    /// Whether it was made by this very command.
    pub(crate) is_new: bool,
}

/// How an update ended that another's transaction can hold up.
pub(crate) enum Updated {
    Done(Modified),
    /// Its time was up, or it met others at every try.
    HeldUp(StoreError),
}

/// How a command is sent.
pub(crate) enum Sent<'s> {
    /// By itself, with so much time on the server.
    Within(Duration),
    /// In a session's transaction, which has its own concerns.
    In(&'s mut ClientSession),
}

/// The tries of one command.
pub(crate) struct Tries {
    made: u32,
    /// What becomes of it where its answer is lost, and what has become of it so far: once that is unknown it stays so.
    lost: Applied,
    applied: Applied,
}

impl Tries {
    pub(crate) fn new(lost: Applied) -> Self {
        Self { made: 0, lost, applied: Applied::No }
    }

    /// Pauses before the next try; an error where none would help.
    pub(crate) async fn after(&mut self, error: Error) -> Result<(), StoreError> {
        self.made += 1;
        let again = match meaning(&error) {
            Meaning::Lost => {
                self.applied = self.lost;
                true
            }
            Meaning::NotReached | Meaning::Contended => true,
            Meaning::TimeUp => {
                self.applied = self.lost;
                false
            }
            Meaning::Refused(..) => false,
        };
        if !again || self.made >= TRIES {
            return Err(classify(error, self.applied));
        }
        let pause = PAUSE.saturating_mul(1 << self.made.min(8)).min(PAUSE_MAX);
        sleep(pause.mul_f64(fastrand::f64())).await;
        Ok(())
    }
}

impl Link {
    /// Updates the document that `query` finds, or makes it, by a pipeline.
    pub(crate) async fn modify(
        &self,
        query: &Document,
        update: &[Document],
        upsert: bool,
    ) -> Result<Modified, StoreError> {
        match self.modify_within(query, update, upsert, self.command_within).await? {
            Updated::Done(modified) => Ok(modified),
            Updated::HeldUp(error) => Err(error),
        }
    }

    /// The same, with so much time on the server.
    pub(crate) async fn modify_within(
        &self,
        query: &Document,
        update: &[Document],
        upsert: bool,
        within: Duration,
    ) -> Result<Updated, StoreError> {
        let mut tries = Tries::new(Applied::Unknown);
        loop {
            let error = match self.modify_once(query, update, upsert, Sent::Within(within)).await {
                Ok(modified) => return Ok(Updated::Done(modified)),
                Err(error) => error,
            };
            let is_held_up = matches!(meaning(&error), Meaning::Contended | Meaning::TimeUp);
            match tries.after(error).await {
                Ok(()) => {}
                Err(error) if is_held_up => return Ok(Updated::HeldUp(error)),
                Err(error) => return Err(error),
            }
        }
    }

    /// The command itself, which tells more than the driver's method does.
    pub(crate) async fn modify_once(
        &self,
        query: &Document,
        update: &[Document],
        upsert: bool,
        sent: Sent<'_>,
    ) -> Result<Modified, Error> {
        let command = doc! {
            "findAndModify": self.collection.name(),
            "query": query.clone(),
            "update": update.iter().cloned().map(Bson::from).collect::<Vec<_>>(),
            "upsert": upsert,
            "new": true,
        };
        let reply = self.run(command, sent).await?;
        let is_new = reply.get_document("lastErrorObject").is_ok_and(|last| last.contains_key("upserted"));
        Ok(Modified { after: reply.get_document("value").ok().cloned(), is_new })
    }

    /// Removes the document that `query` finds; whether there was one.
    pub(crate) async fn remove(&self, query: &Document) -> Result<bool, StoreError> {
        let mut tries = Tries::new(Applied::Unknown);
        loop {
            let command = doc! { "findAndModify": self.collection.name(), "query": query.clone(), "remove": true };
            match self.run(command, Sent::Within(self.command_within)).await {
                Ok(reply) => return Ok(reply.get_document("value").is_ok()),
                Err(error) => tries.after(error).await?,
            }
        }
    }

    async fn run(&self, mut command: Document, sent: Sent<'_>) -> Result<Document, Error> {
        let database = self.collection.client().database(&self.collection.namespace().db);
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        let within = match sent {
            Sent::Within(within) => within,
            Sent::In(session) => return database.run_command(command).session(session).await,
        };
        command.insert("maxTimeMS", pipeline::millis(within));
        command.insert("writeConcern", mongodb::bson::serialize_to_bson(&self.write_concern)?);
        let reply = database.run_command(command).selection_criteria(primary).await?;
        match reply.get_document("writeConcernError") {
            // The driver leaves it to who sends a command. Applied on the primary, and not where it was asked to be.
            Ok(concern) => {
                let what = format!("write concern: {}", concern.get_str("errmsg").unwrap_or("not met"));
                Err(std::io::Error::other(what).into())
            }
            Err(_) => Ok(reply),
        }
    }

    /// The document and the server's time.
    pub(crate) async fn look(&self, key: &EffectiveKey) -> Result<Seen, StoreError> {
        let mut tries = Tries::new(Applied::No);
        loop {
            match self.look_once(key, None).await {
                Ok(seen) => return Ok(seen),
                Err(error) => tries.after(error).await?,
            }
        }
    }

    pub(crate) async fn look_once(
        &self,
        key: &EffectiveKey,
        session: Option<&mut ClientSession>,
    ) -> Result<Seen, Error> {
        let look = self.collection.aggregate(pipeline::look(&key.to_string()));
        let found = match session {
            Some(session) => {
                let mut cursor = look.session(&mut *session).await?;
                cursor.next(session).await.transpose()?
            }
            None => {
                let look = look.read_concern(self.read_concern.clone()).max_time(self.command_within);
                let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
                look.selection_criteria(primary).await?.try_next().await?
            }
        };
        let Some(found) = found else { return Ok(Seen { now: Timestamp::default(), document: None }) };
        let now = found.get_datetime("now").copied().unwrap_or(DateTime::from_millis(0)).timestamp_millis();
        let document = found.get_document("doc").ok().cloned();
        Ok(Seen { now: Timestamp::from_millis(u64::try_from(now).unwrap_or_default()), document })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::classify::tests::said;

    #[rstest]
    #[case::of_a_read(Applied::No, false)]
    #[case::of_a_write(Applied::Unknown, true)]
    #[tokio::test]
    async fn a_command_whose_time_is_up_is_not_sent_again_and_may_be_applied(
        #[case] lost: Applied,
        #[case] may_be_applied: bool,
    ) {
        let error = Tries::new(lost).after(said(50)).await.unwrap_err();
        assert_eq!(error.may_be_applied(), may_be_applied, "{error}");
    }
}
