//! Keys from IKE: strongSwan's charon installs its SAs here, by way of its plugin
//! (`plugins/charon`), instead of into Linux.
//!
//! charon may put SAs for peers with `keys = "ike"`, and for the policies that the configuration
//! has for them. Its own policies then change nothing: they say which packets it can negotiate SAs
//! for. Between other ends its policies run behind all policies of the file, as far as `[ike]`
//! admits. So a compromised IKE daemon opens nothing that the configuration closes.
//!
//! * **One charon.** A second one is refused while the first is connected.
//! * **Handles.** Every request names an SA by the handle that lockgated gave. After a lost
//!   connection charon's plugin sends its handles, and lockgated answers with the handles that it
//!   lacks. No key crosses the socket twice, and nothing that runs is judged again.
//! * **Restarts.** A new run of the daemon has no SA of an earlier one: charon hears that its SAs
//!   ended, and negotiates new ones. SAs stay while charon is gone, to their limits; the SAs of a
//!   new charon replace them.
//! * **Keys** are in locked memory alone, and wiped.
//!
//! | file | |
//! |---|---|
//! | `socket` | the socket, and who may connect |
//! | `serve` | connections, requests and reports, one after the other |
//! | `desk` | requests, and the answers to them |
//! | `book` | SAs and policies that charon has |
//! | `spi_reservations` | handles of reserved SPIs |
//! | `matching` | the peer of the file that an SA is for |
//! | `moves` | SAs whose ends move, and peers that were seen elsewhere |
//! | `requested_ends` | ends of an SA in a request |
//! | `own` | peers and policies that charon makes by itself |
//! | `child_shares` | shares of remote ends in these |
//! | `own_desk` | requests for these |
//! | `own_return` | policies that come, one or many in one change |
//! | `selector_pairs` | packets that the selectors of two CHILD_SAs have in common |
//! | `left_sas` | SAs that an earlier charon left, and SAs that replace them |
//! | `suites` | algorithms of IKEv2 |
//! | `limits` | limits of an SA of charon's |

mod book;
#[cfg(test)]
mod by_name;
mod child_shares;
#[cfg(test)]
mod connection_tests;
mod desk;
mod left_sas;
mod limits;
mod matching;
mod moves;
#[cfg(test)]
mod moves_tests;
mod own;
mod own_desk;
mod own_return;
#[cfg(test)]
mod own_tests;
mod packet_requests;
mod requested_ends;
mod selector_pairs;
mod serve;
mod small_set;
mod socket;
mod spi_reservations;
mod successors;
mod suites;
#[cfg(test)]
mod tests;

pub(crate) use serve::{Heard, serve};
pub(crate) use socket::{CHARON_SOCKET, CharonSocket};
