//! The subjects of the rows of `bench esp`: a case, and the walk that its packets take.

use dataplane::{CacheUse, FastPathUse};
use scene::{Case, Direction};
use wire::Family;

/// Subject of one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Subject {
    pub(super) case: Case,
    pub(super) walk: WalkKind,
    pub(super) cache: Caching,
    /// Frames of a worker that hold packets at the same time.
    pub(super) in_flight: usize,
    /// Times that an emulated card's own engine, beside the workers, seals each packet; 0: there is
    /// none.
    pub(super) engine: u32,
}

/// Walk that packets go by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, clap::ValueEnum)]
pub(super) enum WalkKind {
    /// The fast path where it takes packets, the general walk for all others, as in the daemon.
    Fast,
    /// The general walk alone.
    General,
}

impl WalkKind {
    /// The walk's name on a command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            WalkKind::Fast => "fast",
            WalkKind::General => "general",
        }
    }

    /// Returns the setting of a worker that walks so.
    pub(super) const fn use_(self) -> FastPathUse {
        match self {
            WalkKind::Fast => FastPathUse::WherePossible,
            WalkKind::General => FastPathUse::Never,
        }
    }
}

/// Flow cache of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, clap::ValueEnum)]
pub(super) enum Caching {
    /// A cache for the policy domains whose search costs more: the daemon's default.
    Auto,
    /// A cache for all policy domains.
    Always,
    /// No cache: every packet's policy is searched.
    Off,
}

impl Caching {
    /// The setting's name on a command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Caching::Auto => "auto",
            Caching::Always => "always",
            Caching::Off => "off",
        }
    }

    /// Returns the use of the cache; `None`: there is no cache.
    pub(super) const fn use_(self) -> Option<CacheUse> {
        match self {
            Caching::Auto => Some(CacheUse::WherePaid),
            Caching::Always => Some(CacheUse::Always),
            Caching::Off => None,
        }
    }
}

impl Subject {
    /// The row's name.
    pub(super) fn label(&self) -> String {
        let Subject { case, walk, cache, in_flight, engine } = self;
        let (version, size) = (version(case.family), case.size);
        let backend = case.backend.map_or(String::new(), |kind| format!(" by {}", kind.name()));
        let workers = match case.workers {
            1 => String::new(),
            workers => format!(", {workers} workers"),
        };
        let sas = match case.sas {
            1 => String::new(),
            sas => format!(", {sas} SAs"),
        };
        let engine = match engine {
            0 => String::new(),
            times => format!(", engine × {times}"),
        };
        let what = match case.direction {
            way if !way.ciphers() => way.name().to_owned(),
            way => format!("{}{backend} {}", case.suite, way.name()),
        };
        format!(
            "{what}, IPv{version}, {size} bytes{workers}{sas}, {in_flight} in flight, {} walk, \
             cache {}{engine}",
            walk.name(),
            cache.name()
        )
    }

    /// The row of plain packets that this row is compared with; `None`: it is compared with none.
    pub(super) fn plain(&self) -> Option<Subject> {
        let direction = match self.case.direction {
            Direction::Overlay | Direction::Bypass => Direction::Forward,
            Direction::PacketOut | Direction::PacketIn => Direction::Bypass,
            Direction::CryptoOut | Direction::CryptoIn => Direction::Bypass,
            Direction::Out | Direction::In | Direction::Forward => return None,
        };
        Some(Subject { case: Case { direction, ..self.case }, ..*self })
    }

    /// Arguments of `bench esp` that ask for this row alone.
    pub(super) fn arguments(&self) -> Vec<String> {
        let Subject { case, walk, cache, in_flight, .. } = self;
        let Case { direction, suite, family, size, flows, backend, workers, sas } = case;
        let backend = backend.map(|kind| format!("--backend={}", kind.name()));
        let arguments = [
            format!("--direction={}", direction.name()),
            format!("--suite={suite}"),
            format!("--family={}", version(*family)),
            format!("--size={size}"),
            format!("--flows={flows}"),
            format!("--workers={workers}"),
            format!("--sas={sas}"),
            format!("--walk={}", walk.name()),
            format!("--cache={}", cache.name()),
            format!("--in-flight={in_flight}"),
            "--seed=1".into(),
        ];
        arguments.into_iter().chain(backend).collect()
    }

    /// The row that differs from this one by having one SA alone.
    pub(super) fn with_one_sa(&self) -> Subject {
        Subject { case: Case { sas: 1, ..self.case }, ..*self }
    }

    /// Returns whether another row differs from this one by its walk alone.
    pub(super) fn is_twin_of(&self, other: &Subject) -> bool {
        Subject { walk: other.walk, ..*self } == *other
    }
}

/// IP version.
pub(super) fn version(family: Family) -> u8 {
    match family {
        Family::V4 => 4,
        Family::V6 => 6,
    }
}
