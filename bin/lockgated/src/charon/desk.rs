//! Carries out charon's requests.

use std::net::SocketAddr;
use std::sync::Arc;

use api::v1;
use charon_link::{
    AddPolicy, AddSa, Answer, Charon, CharonId, HandleIssuer, Hardness, LinkMode, PolicyAction,
    PolicyDirection, Report, Request, SaHandle, SaName, Selector, Status, Use,
};
use config::validated::Peer;
use control::{IKE_NAMES, KeyManager, PeerEnds, PutRefusal, PutSa, RemoteEnd, SpiRequest};
use dataplane::Generation;
use ipsec::{Allowance, Lifetime, Limit, Mode, ReplayWindow, SequenceNumbers, Spi, Suite};
use keystate::KeyOrigin;
use policy::Direction;
use tokio::time::Instant;

use super::book::{Book, KnownSa, OCCUPIED, direction};
use super::limits::limits;
use super::matching::{IkePeer, IkePeers};
use super::own::{Own, remote_end};
use super::requested_ends::RequestedEnds;
use super::spi_reservations::{ReservedSpi, SpiReservations};
use super::successors::Successors;
use super::suites;
use crate::backend::Backend;
use crate::backend_impl::Daemon;
use crate::ike_changes::IkeRefusal;
use crate::sa_changes::{Reserved, SaDeletion, SaPut, SaRefusal};
use crate::sa_limits::{Expiry, boot_clock_ns};
use crate::who::Uid;

/// The user that charon runs as. The socket refuses every other user.
pub(super) const ROOT: Uid = Uid(0);

/// Knows what charon has here, and carries out its requests. One task owns it.
pub(super) struct Desk {
    pub(super) daemon: Arc<Daemon>,
    pub(super) book: Book,
    handles: HandleIssuer,
    /// SPIs that charon reserved and has not used.
    spis: SpiReservations,
    /// Peers and policies that charon made by itself.
    pub(super) own: Own,
    pub(super) peers: IkePeers,
    /// Revision and generation that the peers are of.
    pub(super) peers_of: Option<(u64, Generation)>,
    /// Another revision runs, and what charon made by itself was not compared with it.
    must_follow: bool,
    /// Policies of charon's that the configuration admits may not run.
    pub(super) must_bring_back: bool,
    /// They are not tried again before this: the machine refused them.
    pub(super) retry_at: Option<Instant>,
    /// The charon that is connected has named all that it has: no policy is an earlier one's.
    pub(super) has_resumed: bool,
    /// SAs of an earlier charon that have reached their hard limit: nobody else deletes them.
    ended: Vec<SaHandle>,
    /// The charon that was connected last.
    charon: Option<CharonId>,
    /// The charon that is connected is the one that put all SAs.
    pub(super) knows_all: bool,
    /// Requests for SAs that no policy of charon's had when they came.
    pub(super) unanswered: Vec<v1::Acquire>,
    /// Traps for which charon was asked to replace SAs of an earlier charon.
    pub(super) successors: Successors,
    /// Reports that follow the present answer.
    pub(super) due: Vec<Report>,
}

/// The peer that an SA is for, with the limits of its section.
pub(super) struct Home {
    pub(super) name: Arc<str>,
    pub(super) lifetime: Lifetime,
    /// Packets of its replay windows at least.
    pub(super) window: u32,
    pub(super) ends: PeerEnds,
    /// It is not there yet, and comes with the SA.
    pub(super) new: Option<NewPeer>,
}

/// A peer of charon's own that is to come with its first SA.
pub(super) struct NewPeer {
    pub(super) name: Arc<str>,
    pub(super) peer: Peer,
    /// Its reqid, and the remote end whose share it counts for.
    pub(super) number: (u32, RemoteEnd),
}

/// Reports that go out before the next request is read.
const REPORTS_AT_ONCE: usize = 64;

impl Desk {
    pub(super) fn new(daemon: Arc<Daemon>, handles: HandleIssuer) -> Desk {
        let book = Book::with(daemon.picture().ike_names.clone());
        Desk {
            daemon,
            book,
            handles,
            spis: SpiReservations::default(),
            own: Own::default(),
            peers: IkePeers::default(),
            peers_of: None,
            must_follow: false,
            must_bring_back: false,
            retry_at: None,
            has_resumed: true,
            ended: Vec::new(),
            charon: None,
            knows_all: false,
            unanswered: Vec::new(),
            successors: Successors::default(),
            due: Vec::new(),
        }
    }

    /// The number of this run of the daemon on the wire.
    pub(super) fn incarnation(&self) -> u64 {
        let name = self.daemon.picture().incarnation.clone();
        name.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default()
    }

    /// Takes note of a charon that has connected, and has named nothing yet.
    pub(super) fn begin(&mut self, charon: CharonId) {
        self.book.begin();
        self.spis.begin();
        self.own.stand_down_all();
        self.unanswered.clear();
        self.successors.clear();
        self.due.clear();
        self.knows_all = self.charon == Some(charon);
        if !self.knows_all {
            self.own.leave_to_next();
            self.has_resumed = self.book.policies().next().is_none();
        }
        self.charon = Some(charon);
    }

    /// Takes reports that are due, at most [`REPORTS_AT_ONCE`].
    pub(super) fn take_due(&mut self) -> Vec<Report> {
        let count = self.due.len().min(REPORTS_AT_ONCE);
        self.due.drain(..count).collect()
    }

    /// Returns whether reports are due.
    pub(super) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Greets a charon. The SPIs that an earlier one reserved are released.
    async fn greet(&mut self, Charon { id, charon, plugin }: &Charon) -> Answer {
        self.begin(*id);
        if !self.knows_all {
            self.release_unnamed().await;
        }
        let version = env!("CARGO_PKG_VERSION");
        let text = format!("lockgated {version} serves charon {charon} with plugin {plugin}");
        Answer::plain(Status::Done, text)
    }

    /// Does what is asked.
    pub(super) async fn answer(&mut self, request: Request) -> Answer {
        self.catch_up().await;
        match request {
            Request::Hello(charon) => self.greet(&charon).await,
            Request::GetSpi { source, destination } => self.reserve([destination, source]).await,
            Request::AddSa(sa) => self.add_sa(*sa).await,
            Request::UpdateSa(asked) => self.update_sa(asked).await,
            Request::QuerySa(handle) => self.query_sa(handle),
            Request::DeleteSa(handle) => self.delete_sa(handle).await,
            Request::AddPolicy(policy) => {
                let added = policy.clone();
                let answer = self.add_policy(policy).await;
                self.ask_again(Some(&added));
                answer
            }
            Request::QueryPolicy { direction, selectors } => {
                self.query_policy(direction, &selectors)
            }
            Request::DeletePolicy(policy) => {
                let policy = Arc::new(policy);
                match self.book.forget_policy(&policy) {
                    Some(gone) => self.tidy_after(std::slice::from_ref(&*gone)).await,
                    None => self.stand_down(&policy).await,
                }
            }
            Request::FlushSas => self.flush().await,
            Request::FlushPolicies => {
                self.book.forget_policies();
                self.own.stand_down_all();
                self.tidy().await
            }
            Request::ResumeSas(handles) => self.resume(&handles),
            Request::Resumed => {
                let answer = self.settle().await;
                self.ask_again(None);
                answer
            }
            Request::NameSa(names) => {
                match self.known(names.handle).is_some() && self.book.name(&names) {
                    true => Answer::done(),
                    false => Answer::plain(Status::Unknown, ""),
                }
            }
        }
    }

    /// Follows the running configuration, if it is another one, and has what it admits run.
    pub(super) async fn catch_up(&mut self) {
        self.refresh();
        if std::mem::take(&mut self.must_follow) {
            self.follow().await;
        }
        self.bring_back_missing().await;
        self.delete_ended().await;
        self.ask_for_late_successors();
    }

    /// Deletes ended SAs of an earlier charon, and the policies of these SAs alone. The remaining
    /// policies serve waiting packets.
    pub(super) async fn delete_ended(&mut self) {
        let ended = std::mem::take(&mut self.ended);
        for handle in &ended {
            // Refused, its peer is tidied with the next request that is about it.
            let _ = self.delete_known(*handle).await;
        }
        if !ended.is_empty() {
            self.ask_again(None);
        }
    }

    /// Takes the peers of the running configuration, if it is another one.
    pub(super) fn refresh(&mut self) {
        let picture = self.daemon.picture();
        let now = (picture.revision, picture.snapshot.generation());
        if self.peers_of == Some(now) {
            return;
        }
        let before = self.peers_of.replace(now);
        self.peers = IkePeers::of(&picture.config().peers, &picture.snapshot);
        self.must_follow |= before.is_some_and(|(revision, _)| revision != picture.revision);
    }

    async fn reserve(&mut self, [local, end]: [SocketAddr; 2]) -> Answer {
        let (local, remote) = (local.ip(), end.ip());
        let name = match self.peers.between(local, remote).next() {
            Some(peer) => peer.name.to_string(),
            None => match self.check_own_ends([local, remote]) {
                Ok(()) => IKE_NAMES.to_owned(),
                Err(answer) => return answer,
            },
        };
        let asked = SpiRequest { peer: name, manager: KeyManager::Ike, remote: Some(end) };
        let Some(handle) = self.handles.issue() else { return no_more_handles() };
        match self.daemon.reserve_spi(asked).await {
            Ok(Reserved { spi, .. }) => {
                self.spis.add(handle, ReservedSpi { spi, remote }, Instant::now());
                Answer { spi: Some(spi.value()), handle: Some(handle), ..Answer::done() }
            }
            Err(error) => Answer::plain(Status::Refused, error.to_string()),
        }
    }

    async fn add_sa(&mut self, sa: AddSa) -> Answer {
        let way = direction(sa.direction);
        let (Some(handle), Some(owner)) = (self.handles.issue(), self.charon) else {
            return no_more_handles();
        };
        self.forget_gone_orphans().await;
        let (put, new) = match self.planned(&sa).await {
            Ok(planned) => planned,
            Err(answer) => return answer,
        };
        let peer: Arc<str> = put.peer.as_str().into();
        if self.book.is_of_another(way, &sa.name, &peer) {
            let _ = self.tidy_peer(&peer).await;
            return Answer::plain(Status::Refused, OCCUPIED);
        }
        let (replaced, ends) = (put.replaces.clone(), put.ends);
        let incarnation = self.daemon.picture().incarnation.to_string();
        let put = SaPut { incarnation, origin: KeyOrigin::Ike, sas: vec![put] };
        let done = match new {
            Some(new) => self.put_first(new, put).await.map_err(|why| refused_change(&why)),
            None => self.daemon.put_sas(put, ROOT).await.map(drop).map_err(|why| refused(&why)),
        };
        if let Err(refusal) = done {
            // It may have been made for this one.
            let _ = self.tidy_peer(&peer).await;
            return refusal;
        }
        for old in replaced {
            let old = self.book.at(way, old, &peer).map(|sa| sa.name);
            old.into_iter().for_each(|old| self.book.forget(way, &old));
        }
        let AddSa { name, reqid, mut selectors, .. } = sa;
        if way == Direction::Inbound {
            selectors.reverse();
        }
        let selectors = Arc::new(selectors);
        if let Some(ends) = ends {
            self.own.note_end(&peer, remote_end(&ends));
        }
        let (is_due, has_ended, is_orphan, seen) = (false, false, false, None);
        let known = KnownSa {
            handle,
            owner,
            peer,
            name,
            reqid,
            selectors,
            is_due,
            has_ended,
            is_orphan,
            seen,
        };
        self.note_sa(way, known);
        Answer { handle: Some(handle), ..Answer::done() }
    }

    /// Notes an SA that was put; the reservation of its SPI ends.
    fn note_sa(&mut self, way: Direction, known: KnownSa) {
        if let (Direction::Inbound, Some(spi)) = (way, Spi::new(known.name.spi)) {
            self.spis.take_spi(spi);
        }
        self.book.add(way, known);
    }

    /// The SA of a handle, if the connected charon put it.
    pub(super) fn known(&self, handle: SaHandle) -> Option<(Direction, KnownSa)> {
        let (way, known) = self.book.find(handle)?;
        (Some(known.owner) == self.charon).then(|| (way, known.clone()))
    }

    /// Notes the SAs and reserved SPIs of a charon after its connection broke. Answers with lacking
    /// handles: never issued, of an ended SA, of a deleted SA, or of another charon.
    fn resume(&mut self, handles: &[SaHandle]) -> Answer {
        let lacking = handles.iter().copied().filter(|handle| !self.resume_one(*handle));
        Answer { lacking: lacking.collect(), ..Answer::done() }
    }

    /// Returns whether the SA or the reserved SPI of a handle is there.
    fn resume_one(&mut self, handle: SaHandle) -> bool {
        if self.spis.name(handle, Instant::now()) {
            return true;
        }
        let Some((way, known)) = self.known(handle) else { return false };
        if known.has_ended || self.used(way, &known).is_none() {
            return false;
        }
        self.book.resume(handle);
        if known.is_due {
            self.due.push(Report::Expire { handle, hardness: Hardness::Soft });
        }
        true
    }

    /// Releases the reserved SPIs that charon has not named.
    async fn release_unnamed(&mut self) {
        for ReservedSpi { spi, remote } in self.spis.take_unnamed() {
            self.daemon.release_spi(spi, remote).await;
        }
    }

    /// Forgets SAs of an earlier charon that went another way: deleted, or with their peer.
    async fn forget_gone_orphans(&mut self) {
        for (way, orphan) in self.book.orphans() {
            if self.used(way, &orphan).is_none() {
                self.book.forget(way, &orphan.name);
                // Refused, it is tried again with the next request that is about it.
                let _ = self.tidy_peer(&orphan.peer).await;
            }
        }
    }

    /// Takes note that charon has named all that it has. What it does not name was deleted while it
    /// was not connected, if it is the charon that put it; else it stays until there are others.
    async fn settle(&mut self) -> Answer {
        self.book.settle();
        self.has_resumed = true;
        self.release_unnamed().await;
        self.bring_back_missing().await;
        let deleted = match self.knows_all {
            true => self.delete_all(|sa| sa.is_orphan).await,
            false => Answer::done(),
        };
        match self.tidy().await {
            Answer { status: Status::Done, .. } => deleted,
            refused => refused,
        }
    }

    /// Asks charon for an SA of a trap if all outbound SAs of its peer come from an earlier charon.
    pub(super) fn ask_for_successors(&mut self, trap: &AddPolicy) {
        if !self.has_left_sas(trap) {
            return;
        }
        let first = |selector: &Selector| {
            let addresses = (selector.addresses.0, selector.addresses.0);
            Selector { addresses, ..selector.clone() }
        };
        let selectors = trap.policy.selectors.each_ref().map(first);
        self.due.push(Report::Acquire { reqid: trap.reqid, selectors });
        self.successors.add(trap.clone());
    }

    /// Asks again where none has come.
    pub(super) fn ask_for_late_successors(&mut self) {
        let now = tokio::time::Instant::now();
        while let Some(trap) = self.successors.take_due(now) {
            if self.book.has_the(&trap) {
                self.ask_for_successors(&trap);
            }
        }
    }

    /// The put that charon asks for.
    async fn planned(&mut self, sa: &AddSa) -> Result<(PutSa, Option<NewPeer>), Answer> {
        let no = |status: Status, text: String| Err(Answer::plain(status, text));
        let Some(spi) = Spi::new(sa.name.spi) else {
            return no(Status::Refused, "SPIs 0 to 255 are reserved (RFC 4303 §2.1)".into());
        };
        let way = direction(sa.direction);
        let mut ends = [sa.name.source, sa.name.destination];
        let mut selectors = [sa.selectors[0].as_slice(), sa.selectors[1].as_slice()];
        if way == Direction::Inbound {
            ends.reverse();
            selectors.reverse();
        }
        let Some((suite, key)) = suites::suite(&sa.encryption, &sa.integrity) else {
            let (cipher, integrity) = (sa.encryption.transform, sa.integrity.transform);
            let text = format!(
                "Lockgate has no suite of transforms ENCR {cipher} and INTEG {integrity} with keys \
                 of these lengths"
            );
            return no(Status::NoSuite, text);
        };
        let asked = match sa.window {
            1..=ReplayWindow::LARGEST => sa.window.next_multiple_of(32),
            other => {
                let text = format!(
                    "charon asks for replay_window = {other}, and Lockgate has 1 to {}: change it \
                     in swanctl.conf or strongswan.conf",
                    ReplayWindow::LARGEST
                );
                return no(Status::Refused, text);
            }
        };
        let home = match self.peers.has_ends(ends.map(|end| end.ip())) {
            true => self.home_in_file(sa, suite, (ends, selectors))?,
            false => self.own_home(sa, suite, (ends, selectors)).await?,
        };
        self.check_remote(&home.name, home.ends)?;
        let replaces = self.replaced_spis((way, spi), &home.name, selectors);
        let window = (way == Direction::Inbound && asked > home.window).then_some(asked);
        let put = PutSa {
            manager: KeyManager::Ike,
            peer: home.name.to_string(),
            direction: way,
            spi,
            key,
            suite: Some(suite),
            numbers: Some(match sa.esn {
                true => SequenceNumbers::Extended,
                false => SequenceNumbers::Short,
            }),
            window,
            lifetime: Some(limits(home.lifetime, sa)),
            replaces,
            worker: None,
            offload: None,
            ends: Some(home.ends),
        };
        Ok((put, home.new))
    }

    /// The peer of the file that an SA is for. Ends and selectors are in the order local, remote.
    fn home_in_file(
        &self,
        sa: &AddSa,
        suite: Suite,
        (ends, selectors): ([SocketAddr; 2], [&[Selector]; 2]),
    ) -> Result<Home, Answer> {
        let no = |status: Status, text: String| Err(Answer::plain(status, text));
        let AddSa { name: SaName { source, destination, .. }, in_udp, .. } = *sa;
        let said =
            RequestedEnds { direction: direction(sa.direction), source, destination, in_udp };
        let peer = match self.peers.choose(ends, selectors) {
            Ok(peer) => peer,
            Err(why) => return no(Status::Refused, why.to_string()),
        };
        if suite != peer.suite {
            let text = format!(
                "peer {} has suite = \"{}\" and charon negotiated {suite}: propose the same at \
                 both places",
                peer.name, peer.suite
            );
            return no(Status::NoSuite, text);
        }
        match other_form(sa, peer) {
            Some(text) => no(Status::Refused, text),
            None => Ok(Home {
                name: peer.name.clone(),
                lifetime: peer.lifetime,
                window: peer.section.replay_window,
                ends: said.ends(),
                new: None,
            }),
        }
    }

    fn query_sa(&self, handle: SaHandle) -> Answer {
        let found = self.known(handle);
        match found.and_then(|(direction, known)| self.used(direction, &known)) {
            Some(used) => Answer { usage: Some(used), ..Answer::done() },
            None => Answer::plain(Status::Unknown, ""),
        }
    }

    /// Answers with the use of the SA that a policy's packets used last, in its direction.
    fn query_policy(&self, way: PolicyDirection, selectors: &[Selector; 2]) -> Answer {
        let sas = self.book.sas_behind(way, selectors);
        let used = sas.filter_map(|(direction, sa)| self.used(direction, sa));
        match used.min_by_key(|used| used.idle_seconds.unwrap_or(u64::MAX)) {
            Some(used) => Answer { usage: Some(used), ..Answer::done() },
            None => Answer::plain(Status::Unknown, ""),
        }
    }

    /// The use of an SA; `None`: it is gone.
    pub(super) fn used(&self, way: Direction, known: &KnownSa) -> Option<Use> {
        let used = self.allowance(way, known)?.account.used(boot_clock_ns());
        let idle_seconds = used.idle_seconds.filter(|_| used.packets > 0);
        Some(Use { packets: used.packets, bytes: used.bytes, idle_seconds })
    }

    /// The limits and the account of an SA; `None`: it is gone.
    fn allowance(&self, way: Direction, known: &KnownSa) -> Option<Allowance> {
        let (picture, spi) = (self.daemon.picture(), Spi::new(known.name.spi)?);
        let sad = picture.snapshot.sad();
        match way {
            Direction::Inbound => sad.inbound_by_spi(spi)?.allowance.clone(),
            Direction::Outbound => {
                let is_peers = |set| {
                    let set = sad.places().get(set).and_then(|place| sad.set(place));
                    set.is_some_and(|set| *set.peer == *known.peer)
                };
                sad.outbound_by_spi(spi).find(|sa| is_peers(sa.set))?.allowance.clone()
            }
        }
    }

    /// Hardness of the limit that an SA has reached. A missing SA was deleted: a hard end.
    fn reached(&self, way: Direction, known: &KnownSa) -> Option<Hardness> {
        let Some(Allowance { lifetime, account }) = self.allowance(way, known) else {
            return Some(Hardness::Hard);
        };
        let used = account.used(boot_clock_ns());
        let is_beyond =
            |limit: Limit| lifetime.soft.of(limit).is_some_and(|of| used.of(limit) >= of);
        match account.ended() {
            Some(_) => Some(Hardness::Hard),
            None if Limit::ALL.into_iter().any(is_beyond) => Some(Hardness::Soft),
            None => None,
        }
    }

    /// Has all expiries reported that charon was not told of.
    pub(super) fn find_missed_expiries(&mut self) {
        for (direction, known) in self.book.sas_that(|sa| !sa.has_ended) {
            let hardness = self.reached(direction, &known);
            let hardness = hardness.filter(|of| *of == Hardness::Hard || !known.is_due);
            let Some((hardness, spi)) = hardness.zip(Spi::new(known.name.spi)) else { continue };
            let expiry = Expiry { direction, spi, peer: known.peer, hardness };
            let report = self.expired(&expiry);
            self.due.extend(report);
        }
    }

    async fn delete_sa(&mut self, handle: SaHandle) -> Answer {
        if let Some(ReservedSpi { spi, remote }) = self.spis.take(handle) {
            return match self.daemon.release_spi(spi, remote).await {
                true => Answer::done(),
                false => Answer::plain(Status::Unknown, ""),
            };
        }
        match self.known(handle) {
            Some(_) => self.delete_known(handle).await,
            None => Answer::plain(Status::Unknown, ""),
        }
    }

    /// Deletes an SA of whichever charon.
    async fn delete_known(&mut self, handle: SaHandle) -> Answer {
        let known = self.book.find(handle).map(|(way, known)| (way, known.clone()));
        let named = known.and_then(|(way, known)| Some((way, Spi::new(known.name.spi)?, known)));
        let Some((way, spi, known)) = named else { return Answer::plain(Status::Unknown, "") };
        let peer = Some(known.peer.to_string());
        let names = vec![control::SaName { direction: way, spi, peer }];
        let answer = match self.delete(names).await {
            Ok(()) => Answer::done(),
            // It had been replaced, or its peer is gone.
            Err(SaRefusal::Delete { .. }) => Answer::plain(Status::Unknown, ""),
            Err(refusal) => return refused(&refusal),
        };
        self.book.forget(way, &known.name);
        match self.tidy_peer(&known.peer).await {
            Ok(()) => answer,
            Err(why) => Answer::plain(Status::Refused, why.to_string()),
        }
    }

    /// Deletes all SAs of the connected charon, and releases its SPIs.
    async fn flush(&mut self) -> Answer {
        self.spis.begin();
        self.release_unnamed().await;
        let charon = self.charon;
        self.delete_all(|sa| Some(sa.owner) == charon).await
    }

    /// Deletes the SAs that pass a test.
    async fn delete_all(&mut self, pass: impl Fn(&KnownSa) -> bool) -> Answer {
        let mut last = Answer::done();
        for (_, known) in self.book.sas_that(pass) {
            match self.delete_known(known.handle).await {
                Answer { status: Status::Done | Status::Unknown, .. } => {}
                refused => last = refused,
            }
        }
        last
    }

    async fn delete(&self, names: Vec<control::SaName>) -> Result<(), SaRefusal> {
        let deletion = SaDeletion { incarnation: String::new(), names, manager: KeyManager::Ike };
        self.daemon.delete_sas(deletion, ROOT).await.map(drop)
    }

    async fn add_policy(&mut self, policy: AddPolicy) -> Answer {
        if self.stands_in(&policy) {
            let ends = [policy.policy.source.ip(), policy.policy.destination.ip()];
            if !self.peers.has_ends(ends) {
                self.own.stand_in(&policy);
            }
            return Answer::done();
        }
        if !self.book.has_room() {
            let text = "charon has as many policies as it may have";
            return Answer::plain(Status::Refused, text);
        }
        if policy.action != PolicyAction::Protect {
            if let Err(answer) = self.shunt(&policy).await {
                return answer;
            }
            self.book.add_policy(policy);
            return Answer::done();
        }
        let mut ends = [policy.policy.source.ip(), policy.policy.destination.ip()];
        if policy.policy.direction != charon_link::PolicyDirection::Outbound {
            ends.reverse();
        }
        let [local, remote] = ends;
        if self.peers.between(local, remote).next().is_none()
            && let Err(answer) = self.protect(&policy, ends).await
        {
            return answer;
        }
        let is_trap =
            policy.spi == 0 && policy.policy.direction == charon_link::PolicyDirection::Outbound;
        if is_trap && !self.knows_all {
            self.ask_for_successors(&policy);
        }
        self.book.add_policy(policy);
        Answer::done()
    }

    /// The report of a limit of an SA of charon's; `None`: charon was told, or lacks the SA.
    pub(super) fn expired(&mut self, expiry: &Expiry) -> Option<Report> {
        let Expiry { direction, spi, peer, hardness } = expiry;
        let known = match hardness {
            Hardness::Hard => {
                let known = self.book.at(*direction, *spi, peer)?;
                if std::mem::replace(&mut known.has_ended, true) {
                    return None;
                }
                if known.is_orphan {
                    self.ended.push(known.handle);
                }
                known
            }
            Hardness::Soft => {
                let known = self.book.at(*direction, *spi, peer)?;
                if known.has_ended || std::mem::replace(&mut known.is_due, true) {
                    return None;
                }
                known
            }
        };
        Some(Report::Expire { handle: known.handle, hardness: *hardness })
    }
}

/// Says how the form of an SA differs from the peer's section.
fn other_form(sa: &AddSa, peer: &IkePeer) -> Option<String> {
    let mode = match sa.mode {
        LinkMode::Tunnel => Mode::Tunnel,
        LinkMode::Transport => Mode::Transport,
    };
    let of = &peer.encapsulation;
    if mode != of.mode {
        let (has, got) = (of.mode.name(), mode.name());
        return Some(format!(
            "peer {} has mode = \"{has}\" and charon negotiated {got} mode",
            peer.name
        ));
    }
    match (of.udp.is_some(), sa.in_udp) {
        _ if !peer.section.moves.is_none() => None,
        (true, false) => Some(format!(
            "peer {} has encapsulation = \"udp\" and charon negotiated ESP without it: write encap \
             = yes in swanctl.conf",
            peer.name
        )),
        (false, true) => Some(format!(
            "peer {} has encapsulation = \"none\" and charon found a NAT: write encapsulation = \
             \"udp\" in its section",
            peer.name
        )),
        _ => None,
    }
}

/// The answer once all handles of this process are issued, which takes centuries.
fn no_more_handles() -> Answer {
    Answer::plain(Status::Refused, "lockgated has issued all its handles: restart lockgated")
}

/// The answer to a request for an SA that was to come with its peer.
fn refused_change(refusal: &IkeRefusal) -> Answer {
    match refusal {
        IkeRefusal::Sas(refusal) => refused(refusal),
        other => Answer::plain(Status::Refused, other.to_string()),
    }
}

/// The answer to a request that the daemon refuses.
fn refused(refusal: &SaRefusal) -> Answer {
    let status = match refusal {
        SaRefusal::Key { why, .. } if why.is_met_before() => Status::KeyUsed,
        SaRefusal::Put(refused) => match &refused.why {
            PutRefusal::SpiTaken { .. } | PutRefusal::SpiReserved { .. } => Status::Taken,
            _ => Status::Refused,
        },
        _ => Status::Refused,
    };
    Answer::plain(status, refusal.to_string())
}
