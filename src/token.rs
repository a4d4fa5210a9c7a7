//! The fencing token: the number that rises with every grant.

use std::fmt;

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};

/// The number of a grant. For a name, every later grant has a higher one; renewals keep it.
///
/// It binds in sqlx as `bigint` and prints as a number. It stays below 2^53 until the year 2255,
/// so readers that parse JSON numbers as doubles get it whole.
///
/// The safety it gives comes from comparing it where the write happens: see
/// [`Lease::fence`](crate::Lease::fence).
///
/// # Examples
///
/// ```
/// # use leasehold::FencingToken;
/// // It travels as a number, in a header for instance, and is compared where it arrives.
/// let (arriving, accepted) = (FencingToken::new(41), FencingToken::new(42));
/// assert!(arriving < accepted);
/// assert_eq!(arriving.to_string(), "41");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(i64);

impl FencingToken {
    /// A token read back from wherever it travelled to.
    pub const fn new(token: i64) -> Self {
        Self(token)
    }

    /// The number, to be carried to systems other than PostgreSQL.
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl Type<Postgres> for FencingToken {
    fn type_info() -> PgTypeInfo {
        <i64 as Type<Postgres>>::type_info()
    }
}

impl Encode<'_, Postgres> for FencingToken {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <i64 as Encode<'_, Postgres>>::encode_by_ref(&self.0, buffer)
    }
}

impl<'r> Decode<'r, Postgres> for FencingToken {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        <i64 as Decode<'_, Postgres>>::decode(value).map(Self)
    }
}

// By hand, so that the documentation tells which feature it needs: of what is derived it would not.
#[cfg(feature = "serde")]
impl serde::Serialize for FencingToken {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

#[cfg(feature = "serde")]
impl<'d> serde::Deserialize<'d> for FencingToken {
    fn deserialize<D: serde::Deserializer<'d>>(deserializer: D) -> Result<Self, D::Error> {
        i64::deserialize(deserializer).map(Self)
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;

    #[test]
    fn travels_through_serde_as_a_plain_number() {
        let token = FencingToken::new(1_794_872_983_676_531);
        assert_eq!(serde_json::to_string(&token).unwrap(), "1794872983676531");
        assert_eq!(serde_json::from_str::<FencingToken>("1794872983676531").unwrap(), token);
    }
}
