//! Users of the loads.

use object_index::Service;
use object_proto::{Error, NewKey, User, UserChange, UserId};
use runtime::Duration;

/// Makes a user of that ID and name, whatever it takes; one that is there is no error.
///
/// # Panics
///
/// When it is refused.
pub async fn add_user(service: &Service, id: &UserId) {
    let name = id.as_str().to_owned();
    let user = User { id: id.clone(), name: name.clone(), ..User::default() };
    let key = NewKey {
        id: format!("key-of-{name}"),
        wrapped_secret: Vec::new(),
        expires_us: None,
        policy: None,
    };
    let change = UserChange::Create { user: Box::new(user), key: Box::new(key) };
    loop {
        match service.change_user(change.clone()).await {
            Ok(()) | Err(Error::NameTaken) => return,
            Err(error) => {
                assert!(matches!(error, Error::Busy { .. } | Error::Unknown { .. }), "{error}");
            }
        }
        service.env().sleep(Duration::from_millis(100)).await;
    }
}
