use policy::SaSetId;
use proptest::prelude::*;
use wire::{Address, Vni};

use super::model::SharesModel;
use super::*;

const MEMBERS: usize = 12;
const CLAIMS: usize = 3;

fn sender(port: u16, address: u32) -> PacketSender {
    PacketSender::behind(PortId(port), Address::v4(address))
}

/// A step of random shares.
#[derive(Clone, Copy, Debug)]
enum Step {
    Join(PacketSender),
    /// The member at this age.
    Leave(usize),
    Evict(ShareGuarantee),
    /// The sender of the member at this age.
    Claim(usize),
    Release,
}

fn a_sender() -> impl Strategy<Value = PacketSender> {
    let port = prop_oneof![8 => 0..3u16, 1 => Just(u16::MAX)];
    let address = prop_oneof![8 => 0..4u32, 1 => Just(u32::MAX)];
    let opened_by = proptest::option::weighted(0.3, 0..2u32);
    let parts = (port, address, prop::bool::weighted(0.2), opened_by);
    parts.prop_map(|(port, address, inside, opened_by)| {
        let sender = match Vni::new(address).filter(|_| inside) {
            Some(vni) => PacketSender::inside(PortId(port), vni, Address::v4(1)),
            None => sender(port, address),
        };
        sender.opened_by(opened_by.map(SaSetId))
    })
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => a_sender().prop_map(Step::Join),
        4 => (0..MEMBERS).prop_map(Step::Leave),
        4 => a_guarantee().prop_map(Step::Evict),
        1 => (0..MEMBERS).prop_map(Step::Claim),
        1 => Just(Step::Release),
    ]
}

fn a_guarantee() -> impl Strategy<Value = ShareGuarantee> {
    let length = || prop_oneof![0..5usize, Just(MEMBERS), Just(usize::MAX)];
    (length(), length()).prop_map(|(port, sender)| ShareGuarantee { port, sender })
}

/// Members, the oldest first.
fn members(shares: &FairShares) -> Vec<Slot> {
    std::iter::successors(shares.oldest(), |member| shares.after(*member)).collect()
}

/// Ports with members or claims, and the oldest member of each.
fn ports(shares: &FairShares) -> Vec<(Entrance, Option<Slot>)> {
    std::iter::successors(shares.first_port(), |port| shares.port_after(*port))
        .map(|port| (shares.ports[port].entrance, shares.oldest_of_port(port)))
        .collect()
}

proptest! {
    #[test]
    fn shares_match_plain_lists_and_never_grow(
        steps in prop::collection::vec(a_step(), 0..300),
    ) {
        let (mut shares, mut model) = (FairShares::new(MEMBERS, CLAIMS), SharesModel::default());
        let memory = shares.memory();
        let (mut senders, mut claims) = ([None; MEMBERS], vec![]);
        for step in steps {
            match step {
                Step::Join(sender) => {
                    let free = senders.iter().position(Option::is_none);
                    let Some(free) = free else { continue };
                    senders[free] = Some(sender);
                    shares.join(free as Slot, sender);
                    model.join(free as u32, sender);
                }
                Step::Leave(age) => {
                    let Some(number) = model.members().nth(age) else { continue };
                    senders[number as usize] = None;
                    shares.leave(number as Slot);
                    model.leave(number);
                }
                Step::Evict(guarantee) => {
                    let candidate = shares.eviction_candidate(guarantee);
                    prop_assert_eq!(candidate.map(u32::from), model.eviction_candidate(guarantee));
                    let Some(member) = candidate else { continue };
                    let youngest = model.members().last();
                    prop_assert!(shares.len() == 1 || youngest != Some(member.into()));
                    senders[usize::from(member)] = None;
                    shares.leave(member);
                    model.leave(member.into());
                }
                Step::Claim(age) if claims.len() < CLAIMS => {
                    let Some(number) = model.members().nth(age) else { continue };
                    claims.push(shares.sender_of(number as Slot));
                    shares.claim(claims[claims.len() - 1]);
                }
                Step::Release if !claims.is_empty() => shares.release_claim(claims.remove(0)),
                Step::Claim(_) | Step::Release => {}
            }
            let expected: Vec<Slot> = model.members().map(|number| number as Slot).collect();
            prop_assert_eq!((shares.len(), members(&shares)), (expected.len(), expected.clone()));
            for member in expected {
                let sender = senders[usize::from(member)].unwrap();
                prop_assert_eq!(shares.lengths(member), model.lengths(sender));
            }
            for (entrance, oldest) in ports(&shares) {
                let is_of_port = |number: &u32| {
                    senders[*number as usize].is_some_and(|sender| sender.entrance == entrance)
                };
                let expected = model.members().find(is_of_port);
                prop_assert_eq!(oldest.map(u32::from), expected);
                prop_assert!(expected.is_some() || !claims.is_empty());
            }
            let listed = ports(&shares).iter().filter(|(_, oldest)| oldest.is_some()).count();
            prop_assert_eq!(listed, model.ports());
            prop_assert_eq!(shares.memory(), memory);
        }
    }
}

const GUARANTEE: ShareGuarantee = ShareGuarantee { port: 16, sender: 4 };

/// Fills shares of 100 members with a flood around the members 0 to 3 of an honest sender. Returns
/// the flood members before an honest member gives way; at most 1000.
fn flood_around_honest(flood: impl Fn(u32) -> PacketSender) -> u32 {
    let mut shares = FairShares::new(101, 0);
    for member in 0..4 {
        shares.join(member, sender(0, 7));
    }
    let mut free: Vec<Slot> = (4..101).collect();
    for number in 0..1000 {
        shares.join(free.pop().unwrap(), flood(number));
        if shares.len() > 100 {
            let gives_way = shares.eviction_candidate(GUARANTEE).unwrap();
            if gives_way < 4 {
                return number;
            }
            shares.leave(gives_way);
            free.push(gives_way);
        }
    }
    1000
}

#[test]
fn a_flood_displaces_its_own_sender_or_port() {
    // One sender of the port, twenty senders of the port, any senders of another port, and one
    // sender behind four ports.
    assert_eq!(flood_around_honest(|_| sender(0, 1)), 1000);
    assert_eq!(flood_around_honest(|number| sender(0, 100 + number % 20)), 1000);
    assert_eq!(flood_around_honest(|number| sender(1, number)), 1000);
    assert_eq!(flood_around_honest(|number| sender(number as u16 % 4, 1)), 1000);
}

#[test]
fn beside_forged_senders_and_ports_a_guaranteed_share_lasts_until_its_members_are_the_oldest() {
    assert_eq!(flood_around_honest(|number| sender(0, 100 + number)), 96);
    assert_eq!(flood_around_honest(|number| sender(number as u16 % 19, 1)), 96);
}
