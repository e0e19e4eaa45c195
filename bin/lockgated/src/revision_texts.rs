//! Texts of revisions, shared among the callers of `Export`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::change::body_of;
use crate::picture::Picture;

/// The texts that callers hold, by revision.
#[derive(Default)]
pub(crate) struct RevisionTexts(Mutex<HashMap<u64, Weak<str>>>);

impl RevisionTexts {
    /// Returns the text of a revision, if a caller holds the text.
    pub(crate) fn held(&self, revision: u64) -> Option<Arc<str>> {
        let texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        texts.get(&revision)?.upgrade()
    }

    /// Shares a new text, or returns the text that a caller of another kind made meanwhile.
    pub(crate) fn hold(&self, revision: u64, made: Arc<str>) -> Arc<str> {
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        texts.retain(|_, text| text.strong_count() > 0);
        if let Some(held) = texts.get(&revision).and_then(Weak::upgrade) {
            return held;
        }
        texts.insert(revision, Arc::downgrade(&made));
        made
    }
}

/// Makes the text of a kept revision. A large configuration takes a while.
pub(crate) async fn text_of(picture: Arc<Picture>, revision: u64) -> Option<Arc<str>> {
    if revision == picture.revision {
        let write = move || picture.compiled.copied().validated().effective().into();
        return tokio::task::spawn_blocking(write).await.ok();
    }
    let reader = picture.revisions.reader(revision)?;
    let read = tokio::task::spawn_blocking(move || body_of(reader, revision)).await.ok()?;
    // A text that cannot be read is as good as gone.
    Some(read.ok()?.text.into())
}
