//! Condition keys: those that there are.

/// Condition keys that a policy may name, besides those of [`TAG_KEYS`]: in lower case, sorted. A
/// key that no request here has, as many of `aws:`, is missing in each.
pub const CONDITION_KEYS: &[&str] = &[
    "aws:assumedroot",
    "aws:calledvia",
    "aws:calledviafirst",
    "aws:calledvialast",
    "aws:chatbotsourcearn",
    "aws:currenttime",
    "aws:ec2instancesourceprivateipv4",
    "aws:ec2instancesourcevpc",
    "aws:epochtime",
    "aws:federatedprovider",
    "aws:multifactorauthage",
    "aws:multifactorauthpresent",
    "aws:principalaccount",
    "aws:principalarn",
    "aws:principalisawsservice",
    "aws:principalorgid",
    "aws:principalorgpaths",
    "aws:principalservicename",
    "aws:principalservicenameslist",
    "aws:principaltype",
    "aws:referer",
    "aws:requestedregion",
    "aws:resourceaccount",
    "aws:resourceorgid",
    "aws:resourceorgpaths",
    "aws:rolesessionname",
    "aws:securetransport",
    "aws:sourceaccount",
    "aws:sourcearn",
    "aws:sourceidentity",
    "aws:sourceip",
    "aws:sourceorgid",
    "aws:sourceorgpaths",
    "aws:sourceowner",
    "aws:sourcevpc",
    "aws:sourcevpcarn",
    "aws:sourcevpce",
    "aws:tagkeys",
    "aws:tokenissuetime",
    "aws:useragent",
    "aws:userid",
    "aws:username",
    "aws:viaawsservice",
    "aws:vpceaccount",
    "aws:vpceorgid",
    "aws:vpceorgpaths",
    "aws:vpcsourceip",
    "s3:accessgrantsinstancearn",
    "s3:accesspointnetworkorigin",
    "s3:authtype",
    "s3:dataaccesspointaccount",
    "s3:dataaccesspointarn",
    "s3:delimiter",
    "s3:destinationregion",
    "s3:existingjoboperation",
    "s3:existingjobpriority",
    "s3:if-match",
    "s3:if-none-match",
    "s3:inventoryaccessibleoptionalfields",
    "s3:isreplicationpauserequest",
    "s3:jobsuspendedcause",
    "s3:locationconstraint",
    "s3:max-keys",
    "s3:object-lock-legal-hold",
    "s3:object-lock-mode",
    "s3:object-lock-remaining-retention-days",
    "s3:object-lock-retain-until-date",
    "s3:objectcreationoperation",
    "s3:prefix",
    "s3:requestjoboperation",
    "s3:requestjobpriority",
    "s3:requestobjecttagkeys",
    "s3:resourceaccount",
    "s3:signatureage",
    "s3:signatureversion",
    "s3:tlsversion",
    "s3:versionid",
    "s3:x-amz-acl",
    "s3:x-amz-bucket-namespace",
    "s3:x-amz-content-sha256",
    "s3:x-amz-copy-source",
    "s3:x-amz-grant-full-control",
    "s3:x-amz-grant-read",
    "s3:x-amz-grant-read-acp",
    "s3:x-amz-grant-write",
    "s3:x-amz-grant-write-acp",
    "s3:x-amz-metadata-directive",
    "s3:x-amz-object-ownership",
    "s3:x-amz-server-side-encryption",
    "s3:x-amz-server-side-encryption-aws-kms-key-id",
    "s3:x-amz-server-side-encryption-customer-algorithm",
    "s3:x-amz-storage-class",
    "s3:x-amz-website-redirect-location",
];

/// Beginnings of condition keys that a tag's name follows: in lower case, sorted.
pub const TAG_KEYS: &[&str] = &[
    "aws:principaltag/",
    "aws:requesttag/",
    "aws:resourcetag/",
    "s3:accesspointtag/",
    "s3:buckettag/",
    "s3:existingobjecttag/",
    "s3:requestobjecttag/",
];

/// Keys that only requests of [`LISTINGS`] have.
const LISTING_KEYS: [&str; 3] = ["s3:delimiter", "s3:max-keys", "s3:prefix"];
/// Actions, in lower case.
const LISTINGS: [&str; 2] = ["s3:listbucket", "s3:listbucketversions"];

/// A key as contexts are asked for it: in lower case, but for the name of a tag.
pub(crate) fn canonical(key: &str) -> String {
    match key.split_once('/') {
        Some((family, tag)) => format!("{}/{tag}", family.to_ascii_lowercase()),
        None => key.to_ascii_lowercase(),
    }
}

/// Whether it is a key of [`CONDITION_KEYS`], or of [`TAG_KEYS`] with a tag's name.
pub(crate) fn is_known(canonical: &str) -> bool {
    if CONDITION_KEYS.binary_search(&canonical).is_ok() {
        return true;
    }
    let slash = canonical.find('/').map_or(0, |at| at + 1);
    let (family, tag) = canonical.split_at(slash);
    TAG_KEYS.binary_search(&family).is_ok() && !tag.is_empty()
}

/// Whether requests for an action may have a key, where `matches` holds for the names of such
/// actions. Checks the keys of listings, which policies put beside other actions most often; all
/// other keys pass.
pub(crate) fn applies_to(canonical: &str, matches: impl Fn(&str) -> bool) -> bool {
    !LISTING_KEYS.contains(&canonical) || LISTINGS.iter().any(|action| matches(action))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_and_in_lower_case() {
        for keys in [CONDITION_KEYS, TAG_KEYS] {
            assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(keys.iter().all(|key| canonical(key) == **key));
        }
    }

    #[test]
    fn known_keys_are_found_in_any_case() {
        for (key, expected) in [
            ("aws:SourceIp", true),
            ("AWS:sourceip", true),
            ("s3:prefix", true),
            ("s3:x-amz-server-side-encryption-aws-kms-key-id", true),
            ("s3:ExistingObjectTag/Team", true),
            ("s3:ExistingObjectTag/a/b", true),
            ("s3:RequestObjectTag/", false),
            ("s3:RequestObjectTag", false),
            ("s3:prefix/x", false),
            ("s3:prefixes", false),
            ("aws:Foo", false),
            ("prefix", false),
            ("", false),
            ("/", false),
        ] {
            assert_eq!(is_known(&canonical(key)), expected, "{key}");
        }
        assert_eq!(canonical("S3:ExistingObjectTag/Team/A"), "s3:existingobjecttag/Team/A");
    }
}
