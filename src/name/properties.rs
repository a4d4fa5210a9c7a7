//! What holds for every string that somebody may take for a name.

use proptest::prelude::*;

use super::LockName;

proptest! {
    #[test]
    fn name_is_accepted_whenever_postgres_can_hold_it_and_is_kept_byte_for_byte(
        text in prop_oneof![any::<String>(), "[a\u{0}]{0,3}", "x{505,520}", "[xé𝄞]{120,300}"],
    ) {
        let fits = (1..=512).contains(&text.len()) && !text.contains('\0');

        match LockName::new(&text) {
            Ok(name) => prop_assert!(fits && name.as_str().as_bytes() == text.as_bytes()),
            Err(_) => prop_assert!(!fits),
        }
    }
}
