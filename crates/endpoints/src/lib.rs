//! The endpoints of an overlay (VXLAN, RFC 7348; Geneve, RFC 8926): for each address of a tenant
//! the host that it lives on. One thread changes them, and the workers find them for each packet.
//!
//! | module | what |
//! |---|---|
//! | `endpoint` | an endpoint, its key, and the checks of both |
//! | `table` | the table that workers read: [`Table`] |
//! | `column` | keys of a batch, looked up together: [`Column`] |
//! | `map` | the lock-free map below it: one writer, many readers |
//! | `book` | the writer's side, with revisions: [`Book`] |
//! | `order` | keys in order, for listings page by page |
//! | `tombstones` | revisions of deleted keys |
//!
//! # Who waits for whom
//!
//! Nobody. A reader never waits for the writer, not even for one that the kernel has stopped in
//! the middle of a change. An endpoint that changes is found at every moment, before with its old
//! content and then with its new one, never with parts of both.
//!
//! # Memory
//!
//! A table is of fixed size, set when it is made: for each endpoint 64 bytes of record and 16 to 32
//! of index, and for its host 32 of record and 16 to 32 of index, since each endpoint may live on a
//! host of its own. 4,194,304 endpoints take 512 MiB.
//!
//! Not here: packets, configuration, files (who keeps endpoints over a restart puts them again).

#![forbid(unsafe_code)]

mod book;
mod column;
mod endpoint;
mod map;
mod order;
mod table;
#[cfg(test)]
mod tests;
mod tombstones;

pub use book::{Book, Change, Counts, Known, Outcome, Refusal};
pub use column::{Column, Content, Recent, Sender};
pub use endpoint::{AddressFault, Endpoint, EndpointKey, InvalidEndpoint, MacFault};
pub use table::{Found, MAX_ENDPOINTS, Probe, Table};
