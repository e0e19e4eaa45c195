//! Long answers, which come in pages.

use tonic::{Response, Status, Streaming};

use crate::v1;

/// Entries of a page of peers, SAs or policies, at most.
pub const PAGE_ENTRIES: usize = 1000;

/// A page of a long answer.
pub trait Page {
    /// Takes in the page behind this one.
    fn append(&mut self, next: Self);
}

impl Page for v1::Peers {
    fn append(&mut self, next: v1::Peers) {
        self.peers.extend(next.peers);
    }
}

impl Page for v1::Placement {
    fn append(&mut self, next: v1::Placement) {
        self.cards.extend(next.cards);
        self.rules.extend(next.rules);
        self.policies.extend(next.policies);
    }
}

impl Page for v1::SecurityAssociations {
    fn append(&mut self, next: v1::SecurityAssociations) {
        self.sas.extend(next.sas);
    }
}

impl Page for v1::Policies {
    fn append(&mut self, next: v1::Policies) {
        // The first page has all the rest.
        self.policies.extend(next.policies);
    }
}

impl Page for v1::Exported {
    fn append(&mut self, next: v1::Exported) {
        // The first piece has all the rest.
        self.toml.push_str(&next.toml);
    }
}

/// Reads an answer to its end, and returns its pages as one.
///
/// # Errors
/// The status that the daemon ended the stream with; `Unavailable`: it sent no page.
pub async fn whole<P: Page>(pages: Response<Streaming<P>>) -> Result<Response<P>, Status> {
    let mut pages = pages.into_inner();
    let Some(mut whole) = pages.message().await? else {
        return Err(Status::unavailable("the daemon sent nothing"));
    };
    while let Some(page) = pages.message().await? {
        whole.append(page);
    }
    Ok(Response::new(whole))
}
