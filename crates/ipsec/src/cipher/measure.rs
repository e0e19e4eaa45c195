//! The times of a suite's backends on this machine, and the choice that follows from them.
//!
//! Every round takes one batch of each backend and length, one after the other, so that what else
//! the machine does hits all alike; of a backend's batches the quickest counts, because others on
//! the machine only ever add.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use wire::{BATCH, FrameId};

use super::choice::{Choice, SIZES, Times, choose};
use super::kind::BackendKind;
use super::self_test::has_passed;
use super::trial::{Trial, opening};
use super::{Cipher, HEADER_BYTES, OpenJob, SealJob};
use crate::{KeyMaterial, Suite};

/// Rounds that count, at most; one goes before them, to warm up.
const ROUNDS: u32 = 8;
/// Rounds that count where the time is up.
const LEAST_ROUNDS: u32 = 2;
/// Time after which no further round begins. Three backends of AES-GCM, packet by packet, need some
/// 3 ms on a processor that has AES.
const MOST: Duration = Duration::from_millis(10);

impl Choice {
    /// The choice for a suite on this machine.
    ///
    /// An AEAD's backends are measured when this is first called for it after the self-test, for
    /// about a millisecond each, and the choice holds for the whole process. A process that has not
    /// tested its ciphers does not use them (`lockgate check` only expands keys): it measures
    /// nothing and takes the first backend that has the suite. So does every process for any other
    /// suite: ipsec-mb, where it is there, ciphers AES-CBC of many packets side by side, in a
    /// quarter of the time.
    pub fn of(suite: Suite) -> Choice {
        static CHOICES: [OnceLock<Choice>; Suite::ALL.len()] =
            [const { OnceLock::new() }; Suite::ALL.len()];
        if !suite.is_aead() || !has_passed() {
            return Choice::One(BackendKind::first(suite));
        }
        *CHOICES[suite.place()].get_or_init(|| choose(&measure(suite)))
    }
}

/// Measures each backend that has an AEAD: a batch is sealed and opened again, through the very
/// calls that packets take, under a random key that carries nothing. In the order of
/// [`BackendKind::ALL`].
///
/// # Panics
/// If the operating system has no random bytes.
fn measure(suite: Suite) -> Vec<Times> {
    let mut key = zeroize::Zeroizing::new(vec![0; suite.material_bytes()]);
    getrandom::fill(&mut key).expect("random bytes of the operating system");
    let material = KeyMaterial::new(suite, &key).expect("the suite's length");
    let mut trials: Vec<Measured> =
        BackendKind::ALL.iter().filter_map(|kind| Measured::new(&material, *kind)).collect();
    let most_text = SIZES[SIZES.len() - 1] as usize;
    let mut frames = Trial(vec![vec![0; HEADER_BYTES + most_text + suite.icv_bytes()]; BATCH]);
    let begin = Instant::now();
    for round in 0..=ROUNDS {
        if round > LEAST_ROUNDS && begin.elapsed() > MOST {
            break;
        }
        for trial in &mut trials {
            for (size, bytes) in SIZES.into_iter().enumerate() {
                let time = trial.batch(&mut frames, bytes);
                if round > 0 {
                    let least = &mut trial.times.ns[size];
                    *least = time.min(*least);
                }
            }
        }
    }
    trials.into_iter().map(|trial| trial.times).collect()
}

/// A backend under measurement.
struct Measured {
    cipher: Cipher,
    times: Times,
    /// The next packet's number: no nonce comes twice under the key.
    next: u64,
}

impl Measured {
    /// `None`: this machine does not have the backend, or it not the suite.
    fn new(material: &KeyMaterial, kind: BackendKind) -> Option<Measured> {
        let cipher = Cipher::with_choice(material, Choice::One(kind))?;
        // Each backend has the same key: without a number of its own it would seal what another
        // one has sealed, under the same nonce.
        let next = (kind as u64) << 32;
        Some(Measured { cipher, times: Times { kind, ns: [u64::MAX; SIZES.len()] }, next })
    }

    /// Seals and opens a batch of texts of one length; ns.
    fn batch(&mut self, frames: &mut Trial, text_length: u32) -> u64 {
        let first = self.next;
        self.next += BATCH as u64;
        let job = |row: u32| SealJob {
            frame: FrameId(row),
            aad: 0,
            text: HEADER_BYTES as u32,
            text_length,
            nonce: self.cipher.nonce(first + u64::from(row)).to_ne_bytes(),
            sequence: first + u64::from(row),
            row,
        };
        let jobs: Vec<SealJob> = (0..BATCH as u32).map(job).collect();
        let mut opened: Vec<OpenJob> = jobs.iter().map(opening).collect();
        let begin = Instant::now();
        let sealed = self.cipher.seal(frames, &jobs);
        self.cipher.open(frames, &mut opened);
        let time = begin.elapsed();
        let right = sealed.is_ok() && opened.iter().all(|job| job.authentic);
        // The self-test tells of a backend that is wrong; here it must only not win.
        if right { u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) } else { u64::MAX }
    }
}
