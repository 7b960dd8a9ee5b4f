//! Looks into a store that is offline.
