//! The use of SAs with limits over kills, reboots and clocks that are set: it never gets less.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use ipsec::lifetime::{Account, Lifetime, Limit, Limits, Used};
use ipsec::{Fingerprint, KeyMaterial, ReplayWindow, SequenceCounter, SequenceNumbers, Spi, Suite};
use keystate::{Clocks, HostIdentity, KeyFileFacts, KeyState, KeyUse, Notice, RESERVATION_STEP};
use proptest::prelude::*;

const SPI: Spi = Spi::LOWEST;
const ESN: SequenceNumbers = SequenceNumbers::Extended;
const SECOND_NS: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;
/// Bytes that are written ahead of use with the limit below.
const AHEAD: u64 = 64 * MIB;
const HARD: Limits = Limits { bytes: Some(16 * AHEAD), ..Limits::NONE };
const LIFETIME: Lifetime = Lifetime { soft: Limits::NONE, hard: HARD };

/// Seconds of the wall clock since 1970, and nanoseconds of the boot clock.
#[derive(Clone)]
struct SetClocks(Arc<Mutex<(i64, u64)>>);

impl SetClocks {
    fn pass(&self, seconds: u64) {
        let mut clocks = self.0.lock().unwrap();
        clocks.0 += seconds as i64;
        clocks.1 += seconds * SECOND_NS;
    }

    fn set_wall(&self, by_seconds: i64) {
        self.0.lock().unwrap().0 += by_seconds;
    }
}

impl Clocks for SetClocks {
    fn boot_ns(&self) -> u64 {
        self.0.lock().unwrap().1
    }

    fn wall(&self) -> SystemTime {
        let seconds = self.0.lock().unwrap().0;
        match u64::try_from(seconds) {
            Ok(since) => SystemTime::UNIX_EPOCH + Duration::from_secs(since),
            Err(_) => SystemTime::UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs()),
        }
    }
}

struct Machine {
    root: tempfile::TempDir,
    clocks: SetClocks,
    boot: u32,
}

impl Machine {
    fn new() -> Machine {
        let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let clocks = SetClocks(Arc::new(Mutex::new((1_700_000_000, 30 * SECOND_NS))));
        Machine { root, clocks, boot: 1 }
    }

    fn limits_file(&self) -> PathBuf {
        self.root.path().join("state/sequence/limits")
    }

    fn open(&self) -> KeyState {
        let host = HostIdentity::new("machine", &format!("boot {}", self.boot));
        let [run, state] = ["run", "state"].map(|name| self.root.path().join(name));
        KeyState::open_with(&run, &state, &host, Box::new(self.clocks.clone())).unwrap()
    }

    /// The power is cut, and comes back after a time.
    fn reboot(&mut self, off_seconds: u64) {
        self.boot += 1;
        self.clocks.pass(off_seconds);
        self.clocks.0.lock().unwrap().1 = 20 * SECOND_NS;
        std::fs::remove_dir_all(self.root.path().join("run")).unwrap();
    }

    fn start(&self) -> Gateway {
        let mut state = self.open();
        let file =
            KeyFileFacts { path: self.root.path().join("a.keys"), modified: self.clocks.wall() };
        let counter = state.outbound(key(1), SPI, ESN, &file).unwrap();
        let window = state.inbound(key(2), SPI, 64, ESN).unwrap();
        let accounts = [(1, KeyUse::Seals), (2, KeyUse::Opens)]
            .map(|(seed, usage)| state.account(key(seed), usage, &HARD).unwrap());
        let mut gateway = Gateway { state, counter, window, accounts, clocks: self.clocks.clone() };
        gateway.tick(1);
        gateway
    }
}

/// A daemon with one SA of each direction: sealing, opening.
struct Gateway {
    counter: Arc<SequenceCounter>,
    window: Arc<ReplayWindow>,
    accounts: [Arc<Account>; 2],
    clocks: SetClocks,
    /// Dropped last: workers die with the process.
    state: KeyState,
}

impl Gateway {
    fn used(&self) -> [Used; 2] {
        self.accounts.each_ref().map(|account| account.used(self.clocks.boot_ns()))
    }

    /// Time passes, and the control loop does its work. More seldom than in truth.
    fn tick(&mut self, seconds: u64) {
        for part in 0..seconds.div_ceil(50) {
            self.clocks.pass((seconds - part * 50).min(50));
            for account in &self.accounts {
                account.judge(&LIFETIME, self.clocks.boot_ns());
            }
            self.state.top_up().unwrap();
        }
    }

    /// Returns how many packets passed in each direction.
    fn pass(&mut self, packets: u32, bytes_each: u64) -> [u64; 2] {
        let bytes = u64::from(packets) * bytes_each;
        let taken = self.accounts.each_ref().map(|account| {
            account
                .take(&HARD, (packets, bytes), || std::iter::repeat_n(bytes_each, packets as usize))
        });
        if taken[0] > 0 {
            self.counter.draw(taken[0]).whole().unwrap();
        }
        for _ in 0..taken[1] {
            self.window.commit(self.window.right_edge() + 1).unwrap();
        }
        self.tick(6);
        taken.map(u64::from)
    }
}

fn key(seed: u32) -> Fingerprint {
    let mut bytes = [7; 20];
    bytes[..4].copy_from_slice(&seed.to_be_bytes());
    KeyMaterial::new(Suite::Aes128Gcm, &bytes).unwrap().fingerprint()
}

#[test]
fn use_goes_on_exactly_after_a_kill_and_after_a_stop() {
    let machine = Machine::new();
    let mut gateway = machine.start();
    assert_eq!(gateway.used().map(|used| used.seconds), [None, None]);
    assert_eq!(gateway.pass(10, 100), [10, 10]);
    gateway.accounts[1].end(Limit::Idle);
    gateway.tick(100);
    let used = gateway.used();
    assert_eq!((used[0].packets, used[0].bytes, used[1].packets), (10, 1000, 10));
    assert_eq!(used[0].seconds, Some(100));
    drop(gateway);
    let gateway = machine.start();
    assert_eq!(gateway.used()[0], Used { seconds: Some(101), idle_seconds: Some(101), ..used[0] });
    assert_eq!(gateway.accounts.each_ref().map(|a| a.ended()), [None, Some(Limit::Idle)]);
    let Gateway { state, accounts, counter, window, .. } = gateway;
    drop((accounts, counter, window));
    state.close().unwrap();
    let mut gateway = machine.start();
    assert_eq!(gateway.used()[0].packets, 10);
    assert_eq!(gateway.pass(1, 1), [1, 0]);
}

#[test]
fn account_is_one_while_it_is_used_and_none_without_a_counter() {
    let machine = Machine::new();
    let mut gateway = machine.start();
    let again = gateway.state.account(key(1), KeyUse::Seals, &Limits::NONE).unwrap();
    assert!(Arc::ptr_eq(&again, &gateway.accounts[0]));
    for (seed, usage) in [(1, KeyUse::Opens), (2, KeyUse::Seals), (3, KeyUse::Seals)] {
        assert!(gateway.state.account(key(seed), usage, &HARD).is_none());
    }
    // Whoever holds the account counts in words that no other process may have.
    drop(gateway);
    let host = HostIdentity::new("machine", "boot 1");
    let [run, state] = ["run", "state"].map(|name| machine.root.path().join(name));
    assert!(KeyState::open_as(&run, &state, &host).is_err());
    drop(again);
}

#[test]
fn reboot_counts_what_was_reserved_as_used() {
    let mut machine = Machine::new();
    let mut gateway = machine.start();
    gateway.pass(10, 1000);
    drop(gateway);
    machine.reboot(100);
    let gateway = machine.start();
    let [sealed, opened] = gateway.used();
    assert_eq!(sealed.packets, RESERVATION_STEP);
    assert_eq!(opened.packets, 10);
    for used in [sealed, opened] {
        // Ahead of what was used when the file was written.
        assert!((10_000..=10_000 + AHEAD).contains(&used.bytes), "{}", used.bytes);
        assert!((100..=170).contains(&used.seconds.unwrap()), "{:?}", used.seconds);
    }
}

#[test]
fn stop_before_a_reboot_counts_no_byte_and_no_second_too_many() {
    let mut machine = Machine::new();
    let mut gateway = machine.start();
    gateway.pass(10, 1000);
    let Gateway { state, accounts, counter, window, .. } = gateway;
    drop((accounts, counter, window));
    state.close().unwrap();
    machine.reboot(100);
    let used = machine.start().used();
    assert_eq!(used.map(|used| used.bytes), [10_000, 10_000]);
    assert_eq!(used.map(|used| used.seconds.unwrap() / 10), [10, 10]);
}

#[test]
fn wall_clock_that_is_set_back_makes_no_key_younger() {
    let mut machine = Machine::new();
    let mut gateway = machine.start();
    gateway.pass(1, 1);
    gateway.tick(10_000);
    let before = gateway.used()[0].seconds.unwrap();
    assert_eq!(before, 10_000);
    drop(gateway);
    machine.reboot(500);
    machine.clocks.set_wall(-1_000_000);
    let mut gateway = machine.start();
    let after = gateway.used()[0].seconds.unwrap();
    // The time since the boot at least, and at most a minute written ahead.
    assert!((before + 20..before + 90).contains(&after), "{after}");
    // It is set right: the time without power counts too.
    machine.clocks.set_wall(1_000_000);
    gateway.tick(1);
    assert!((10_500..10_560).contains(&gateway.used()[0].seconds.unwrap()));
}

#[test]
fn wall_clock_that_is_set_right_after_the_first_use_makes_no_key_older() {
    let mut machine = Machine::new();
    machine.clocks.set_wall(-1_600_000_000);
    let mut gateway = machine.start();
    gateway.pass(1, 1);
    machine.clocks.set_wall(1_600_000_000);
    gateway.tick(100);
    assert_eq!(gateway.used()[0].seconds, Some(100));
    drop(gateway);
    machine.reboot(10);
    assert!(machine.start().used()[0].seconds.unwrap() < 200);
}

#[test]
fn limits_that_come_later_count_the_packets_before_them() {
    let machine = Machine::new();
    let mut state = machine.open();
    let file =
        KeyFileFacts { path: machine.root.path().join("a.keys"), modified: machine.clocks.wall() };
    state.outbound(key(1), SPI, ESN, &file).unwrap().draw(50).whole().unwrap();
    state.inbound(key(2), SPI, 64, ESN).unwrap().commit(70).unwrap();
    drop(state);
    let gateway = machine.start();
    assert_eq!(gateway.used().map(|used| used.packets), [50, 70]);
}

#[test]
fn lost_record_of_use_counts_as_used_up() {
    let mut machine = Machine::new();
    let mut gateway = machine.start();
    gateway.pass(10, 100);
    drop(gateway);
    let mut text = std::fs::read(machine.limits_file()).unwrap();
    text[80] ^= 1;
    std::fs::write(machine.limits_file(), text).unwrap();
    // The run record still says everything.
    let mut gateway = machine.start();
    let path = machine.limits_file().with_extension("bad");
    assert_eq!(gateway.state.take_notices(), [Notice::SetAside { path }]);
    assert_eq!(gateway.used()[0].bytes, 1000);
    drop(gateway);
    std::fs::remove_file(machine.limits_file()).unwrap();
    machine.reboot(1);
    for _ in 0..2 {
        let mut gateway = machine.start();
        assert!(gateway.accounts.iter().all(|account| account.is_spent(&HARD)));
        assert_eq!(gateway.pass(1, 1), [0, 0]);
        // A key that was never used has nothing to lose.
        let window = gateway.state.inbound(key(3), SPI, 64, ESN).unwrap();
        let account = gateway.state.account(key(3), KeyUse::Opens, &HARD).unwrap();
        assert_eq!(account.used(0).packets, 0);
        drop((window, account, gateway));
        machine.reboot(1);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u32, u64),
    Wait(u64),
    Kill,
    Stop,
    Reboot(u64),
    SetWall(i64),
    /// So many other SAs come and go.
    Grow(u32),
    End,
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1u32..200, prop_oneof![1u64..2000, Just(65_535)])
            .prop_map(|(packets, bytes)| Step::Pass(packets, bytes)),
        3 => prop_oneof![1u64..100, 1000u64..5000].prop_map(Step::Wait),
        3 => Just(Step::Kill),
        1 => Just(Step::Stop),
        3 => prop_oneof![0u64..10, 1000u64..100_000].prop_map(Step::Reboot),
        2 => prop_oneof![-2_000_000_000i64..0, 0i64..100_000].prop_map(Step::SetWall),
        1 => (1u32..300).prop_map(Step::Grow),
        1 => Just(Step::End),
    ]
}

/// The plain truth about one SA, and the use that the gateway is to say until the next reboot.
#[derive(Clone, Copy, Default, Debug)]
struct Truth {
    packets: u64,
    bytes: u64,
    said: Option<Used>,
    ended: bool,
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(24)
    })]

    #[test]
    fn use_never_gets_less(steps in prop::collection::vec(a_step(), 1..40)) {
        let mut machine = Machine::new();
        let mut gateway = machine.start();
        let mut truths = [Truth::default(); 2];
        let mut age = [None; 2];
        let mut others = 0;
        for step in steps {
            let mut is_boot = false;
            match step.clone() {
                Step::Pass(packets, bytes) => {
                    for (truth, taken) in truths.iter_mut().zip(gateway.pass(packets, bytes)) {
                        prop_assert!(!truth.ended || taken == 0, "{step:?}");
                        truth.packets += taken;
                        truth.bytes += taken * bytes;
                        if let Some(said) = &mut truth.said {
                            said.packets += taken;
                            said.bytes += taken * bytes;
                        }
                    }
                }
                Step::Wait(seconds) => gateway.tick(seconds),
                Step::Kill => {
                    drop(gateway);
                    gateway = machine.start();
                }
                Step::Stop => {
                    let Gateway { state, accounts, counter, window, .. } = gateway;
                    drop((accounts, counter, window));
                    state.close().unwrap();
                    gateway = machine.start();
                }
                Step::Reboot(seconds) => {
                    drop(gateway);
                    machine.reboot(seconds);
                    gateway = machine.start();
                    is_boot = true;
                }
                Step::SetWall(by) => machine.clocks.set_wall(by),
                Step::Grow(count) => {
                    for _ in 0..count {
                        others += 1;
                        let other = key(1000 + others);
                        let window = gateway.state.inbound(other, SPI, 64, ESN).unwrap();
                        gateway.state.account(other, KeyUse::Opens, &HARD).unwrap();
                        drop(window);
                    }
                    gateway.tick(1);
                }
                Step::End => {
                    gateway.accounts[0].end(Limit::Seconds);
                    truths[0].ended = true;
                    gateway.tick(1);
                }
            }
            let used = gateway.used();
            for (at, (truth, used)) in truths.iter_mut().zip(used).enumerate() {
                prop_assert!(used.packets >= truth.packets, "{step:?} {at}: {used:?} {truth:?}");
                prop_assert!(used.bytes >= truth.bytes, "{step:?} {at}: {used:?} {truth:?}");
                if is_boot {
                    truth.said = Some(used);
                } else if let Some(said) = truth.said {
                    prop_assert_eq!((used.packets, used.bytes), (said.packets, said.bytes));
                } else {
                    prop_assert_eq!((used.packets, used.bytes), (truth.packets, truth.bytes));
                }
                prop_assert!(used.seconds >= age[at], "{step:?} {at}: {:?} {used:?}", age[at]);
                age[at] = used.seconds;
                truth.ended |= gateway.accounts[at].ended().is_some();
                prop_assert_eq!(gateway.accounts[at].ended().is_some(), truth.ended);
            }
        }
    }
}
