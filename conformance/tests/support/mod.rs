//! Factories of memory stores.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use idemkit_conformance::{BoxError, Factory, Opening, Spoil, Spoiled};
use idemkit_core::{EffectiveKey, MemoryStore, Record, Store};
use parking_lot::Mutex;

/// Makes the store of a namespace.
pub(crate) type Make = Box<dyn Fn() -> MemoryStore + Send + Sync>;
/// Makes a handle of it.
pub(crate) type Wrap = Box<dyn Fn(MemoryStore, &Opening) -> Arc<dyn Store> + Send + Sync>;

/// Opens memory stores, one a namespace.
pub(crate) struct Memory {
    stores: Mutex<HashMap<String, MemoryStore>>,
    make: Make,
    wrap: Wrap,
}

impl Memory {
    /// The store as it is.
    pub(crate) fn sound() -> Self {
        Self::made_by(MemoryStore::new)
    }

    /// The store with other settings.
    pub(crate) fn made_by(make: impl Fn() -> MemoryStore + Send + Sync + 'static) -> Self {
        Self::wrapped(make, |store, _| Arc::new(store))
    }

    /// The store inside another.
    pub(crate) fn wrapped(
        make: impl Fn() -> MemoryStore + Send + Sync + 'static,
        wrap: impl Fn(MemoryStore, &Opening) -> Arc<dyn Store> + Send + Sync + 'static,
    ) -> Self {
        Self { stores: Mutex::default(), make: Box::new(make), wrap: Box::new(wrap) }
    }
}

#[async_trait]
impl Factory for Memory {
    async fn open(&self, opening: &Opening) -> Result<Arc<dyn Store>, BoxError> {
        let store = self.stores.lock().entry(opening.namespace().to_owned()).or_insert_with(&self.make).clone();
        Ok((self.wrap)(store, opening))
    }

    async fn spoil(&self, namespace: &str, key: &EffectiveKey, with: Spoil) -> Result<Spoiled, BoxError> {
        let record = match with {
            Spoil::Garbage => Record::Garbage,
            // It holds no bytes: what cannot be read is one kind of record.
            _ => Record::Newer,
        };
        self.stores.lock().get(namespace).ok_or("nothing was opened there")?.plant(*key, record);
        Ok(Spoiled::Done)
    }

    async fn clean_up(&self, namespace: &str) -> Result<(), BoxError> {
        self.stores.lock().remove(namespace);
        Ok(())
    }
}
