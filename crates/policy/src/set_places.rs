//! Places of SA sets.

use std::sync::Arc;

use imbl::HashMap;

use crate::ids::SetIndex;
use crate::policy::SaSetId;

/// The SA sets that policies may name, and their places: a set keeps its place as long as it is
/// there. Cheap to copy; a changed copy shares what did not change.
#[derive(Clone, Debug, Default)]
pub struct SetPlaces {
    /// Sets by place; a list as a whole, because each packet looks one up.
    ids: Arc<Vec<Option<SaSetId>>>,
    places: HashMap<SaSetId, SetIndex>,
    /// All places below this one are taken.
    taken_below: usize,
}

impl SetPlaces {
    /// The place of a set.
    pub fn get(&self, id: SaSetId) -> Option<SetIndex> {
        self.places.get(&id).copied()
    }

    /// The set at a place.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn id(&self, place: SetIndex) -> SaSetId {
        self.ids[place.0 as usize].expect("a place of a set")
    }

    /// Gives a set the lowest place that is vacant, or returns the one that it has.
    pub fn add(&mut self, id: SaSetId) -> SetIndex {
        self.get(id).unwrap_or_else(|| {
            let ids = Arc::make_mut(&mut self.ids);
            let behind = ids[self.taken_below..].iter().position(Option::is_none);
            let vacant = behind.map_or(ids.len(), |behind| self.taken_below + behind);
            ids.resize(ids.len().max(vacant + 1), None);
            ids[vacant] = Some(id);
            self.taken_below = vacant + 1;
            let place = SetIndex(vacant as u32);
            self.places.insert(id, place);
            place
        })
    }

    /// Gives a set, which has no other place, a place that is vacant or its own.
    ///
    /// # Panics
    /// If another set has the place.
    pub fn add_at(&mut self, place: SetIndex, id: SaSetId) {
        let ids = Arc::make_mut(&mut self.ids);
        ids.resize(ids.len().max(place.0 as usize + 1), None);
        let before = ids[place.0 as usize].replace(id);
        assert!(before.is_none_or(|before| before == id), "a vacant place");
        self.places.insert(id, place);
    }

    /// Takes a set out; its place may be another's next.
    pub fn remove(&mut self, id: SaSetId) {
        if let Some(place) = self.places.remove(&id) {
            Arc::make_mut(&mut self.ids)[place.0 as usize] = None;
            self.taken_below = self.taken_below.min(place.0 as usize);
        }
    }

    /// The sets in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = (SetIndex, SaSetId)> {
        (0..).map(SetIndex).zip(&*self.ids).filter_map(|(place, id)| Some((place, (*id)?)))
    }

    /// Places that another set has than in an earlier state: the set before, and the set now.
    pub(crate) fn changes<'s>(
        &'s self,
        earlier: &'s SetPlaces,
    ) -> impl Iterator<Item = (Option<SaSetId>, Option<SaSetId>)> {
        let places = match Arc::ptr_eq(&self.ids, &earlier.ids) {
            true => 0,
            false => self.ids.len().max(earlier.ids.len()),
        };
        let at = |ids: &[Option<SaSetId>], place: usize| ids.get(place).copied().flatten();
        let both = (0..places).map(move |place| (at(&earlier.ids, place), at(&self.ids, place)));
        both.filter(|(before, now)| before != now)
    }
}

impl FromIterator<SaSetId> for SetPlaces {
    fn from_iter<I: IntoIterator<Item = SaSetId>>(ids: I) -> SetPlaces {
        let mut sets = SetPlaces::default();
        for id in ids {
            sets.add(id);
        }
        sets
    }
}
