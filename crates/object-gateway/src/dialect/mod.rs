//! S3's operations, as s3s hands them on. All that is not here stays s3s's `NotImplemented`.

/// Writes checksums into the fields that many of s3s's types have for them.
macro_rules! show_checksums {
    ($output:ident, $checksums:expr) => {
        for checksum in $checksums {
            let text = Some(crate::digest::text_of(checksum));
            match checksum.kind {
                object_proto::ChecksumKind::Crc32 => $output.checksum_crc32 = text,
                object_proto::ChecksumKind::Crc32c => $output.checksum_crc32c = text,
                object_proto::ChecksumKind::Crc64Nvme => $output.checksum_crc64nvme = text,
                object_proto::ChecksumKind::Sha1 => $output.checksum_sha1 = text,
                object_proto::ChecksumKind::Sha256 => $output.checksum_sha256 = text,
            }
        }
    };
}

mod acl;
mod attributes;
mod bucket;
mod bucket_acl;
mod bucket_encryption;
mod call;
mod complete;
mod conditions;
mod copy;
mod cors;
mod delete;
mod download;
mod get;
mod lifecycle;
mod list;
mod lock_rule;
mod object_acl;
mod object_lock;
mod part_checksums;
mod put;
mod receive;
mod retention;
mod sealer;
mod settings;
mod sse;
mod state;
mod tags;
mod unset;
mod upload;
mod uploads;
mod versions;
mod wishes;

use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result};

pub use bucket_encryption::EncryptionRoute;
pub use put::{SYSTEM_HEADERS, put_object};
pub use sealer::Sealer;
pub use state::State;
use unset::Missing;

/// S3's operations on a backend.
pub struct Dialect(pub State);

#[async_trait::async_trait]
impl S3 for Dialect {
    async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        bucket::list_buckets(&self.0, request).await
    }

    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        bucket::create_bucket(&self.0, request).await
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        bucket::head_bucket(&self.0, &request)
    }

    async fn delete_bucket(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        bucket::delete_bucket(&self.0, request).await
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        bucket::get_bucket_location(&self.0, &request)
    }

    async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        put::put_object(&self.0, request).await
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        get::get_object(&self.0, request).await
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        get::head_object(&self.0, request).await
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        delete::delete_object(&self.0, request).await
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        delete::delete_objects(&self.0, request).await
    }

    async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        list::list_objects(&self.0, request).await
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        list::list_objects_v2(&self.0, request).await
    }

    async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        copy::copy_object(&self.0, request).await
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        upload::create_upload(&self.0, request).await
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        upload::upload_part(&self.0, request).await
    }

    async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        copy::copy_part(&self.0, request).await
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        complete::complete_upload(&self.0, request).await
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        upload::abort_upload(&self.0, request).await
    }

    async fn list_parts(
        &self,
        request: S3Request<ListPartsInput>,
    ) -> S3Result<S3Response<ListPartsOutput>> {
        uploads::list_parts(&self.0, request).await
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        uploads::list_uploads(&self.0, request).await
    }

    async fn get_object_attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        attributes::get_attributes(&self.0, request).await
    }

    async fn get_bucket_acl(
        &self,
        request: S3Request<GetBucketAclInput>,
    ) -> S3Result<S3Response<GetBucketAclOutput>> {
        bucket_acl::get_acl(&self.0, request).await
    }

    async fn put_bucket_acl(
        &self,
        request: S3Request<PutBucketAclInput>,
    ) -> S3Result<S3Response<PutBucketAclOutput>> {
        bucket_acl::put_acl(&self.0, request).await
    }

    async fn get_object_acl(
        &self,
        request: S3Request<GetObjectAclInput>,
    ) -> S3Result<S3Response<GetObjectAclOutput>> {
        object_acl::get_acl(&self.0, request).await
    }

    async fn put_object_acl(
        &self,
        request: S3Request<PutObjectAclInput>,
    ) -> S3Result<S3Response<PutObjectAclOutput>> {
        object_acl::put_acl(&self.0, request).await
    }

    async fn get_bucket_ownership_controls(
        &self,
        request: S3Request<GetBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<GetBucketOwnershipControlsOutput>> {
        settings::get_ownership(&request)
    }

    async fn put_bucket_ownership_controls(
        &self,
        request: S3Request<PutBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<PutBucketOwnershipControlsOutput>> {
        settings::put_ownership(&self.0, request).await
    }

    async fn delete_bucket_ownership_controls(
        &self,
        request: S3Request<DeleteBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<DeleteBucketOwnershipControlsOutput>> {
        settings::delete_ownership(&self.0, request).await
    }

    async fn get_public_access_block(
        &self,
        request: S3Request<GetPublicAccessBlockInput>,
    ) -> S3Result<S3Response<GetPublicAccessBlockOutput>> {
        settings::get_public_access(&request)
    }

    async fn put_public_access_block(
        &self,
        request: S3Request<PutPublicAccessBlockInput>,
    ) -> S3Result<S3Response<PutPublicAccessBlockOutput>> {
        settings::put_public_access(&self.0, request).await
    }

    async fn delete_public_access_block(
        &self,
        request: S3Request<DeletePublicAccessBlockInput>,
    ) -> S3Result<S3Response<DeletePublicAccessBlockOutput>> {
        settings::delete_public_access(&self.0, request).await
    }

    async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        versions::get_versioning(&request)
    }

    async fn put_bucket_versioning(
        &self,
        request: S3Request<PutBucketVersioningInput>,
    ) -> S3Result<S3Response<PutBucketVersioningOutput>> {
        versions::put_versioning(&self.0, request).await
    }

    async fn list_object_versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<S3Response<ListObjectVersionsOutput>> {
        versions::list_versions(&self.0, request).await
    }

    async fn get_bucket_logging(
        &self,
        _: S3Request<GetBucketLoggingInput>,
    ) -> S3Result<S3Response<GetBucketLoggingOutput>> {
        Ok(S3Response::new(GetBucketLoggingOutput::default()))
    }

    async fn get_bucket_notification_configuration(
        &self,
        _: S3Request<GetBucketNotificationConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketNotificationConfigurationOutput>> {
        Ok(S3Response::new(GetBucketNotificationConfigurationOutput::default()))
    }

    async fn get_bucket_accelerate_configuration(
        &self,
        _: S3Request<GetBucketAccelerateConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketAccelerateConfigurationOutput>> {
        Ok(S3Response::new(GetBucketAccelerateConfigurationOutput::default()))
    }

    async fn get_bucket_request_payment(
        &self,
        _: S3Request<GetBucketRequestPaymentInput>,
    ) -> S3Result<S3Response<GetBucketRequestPaymentOutput>> {
        let payer = Some(Payer::from_static(Payer::BUCKET_OWNER));
        Ok(S3Response::new(GetBucketRequestPaymentOutput { payer }))
    }

    async fn get_bucket_policy(
        &self,
        request: S3Request<GetBucketPolicyInput>,
    ) -> S3Result<S3Response<GetBucketPolicyOutput>> {
        settings::get_policy(&request)
    }

    async fn get_bucket_policy_status(
        &self,
        request: S3Request<GetBucketPolicyStatusInput>,
    ) -> S3Result<S3Response<GetBucketPolicyStatusOutput>> {
        settings::get_policy_status(&request)
    }

    async fn put_bucket_policy(
        &self,
        request: S3Request<PutBucketPolicyInput>,
    ) -> S3Result<S3Response<PutBucketPolicyOutput>> {
        settings::put_policy(&self.0, request).await
    }

    async fn get_bucket_cors(
        &self,
        request: S3Request<GetBucketCorsInput>,
    ) -> S3Result<S3Response<GetBucketCorsOutput>> {
        cors::get_cors(&request)
    }

    async fn put_bucket_cors(
        &self,
        request: S3Request<PutBucketCorsInput>,
    ) -> S3Result<S3Response<PutBucketCorsOutput>> {
        cors::put_cors(&self.0, request).await
    }

    async fn get_bucket_lifecycle_configuration(
        &self,
        request: S3Request<GetBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketLifecycleConfigurationOutput>> {
        lifecycle::get_lifecycle(&request)
    }

    async fn put_bucket_lifecycle_configuration(
        &self,
        request: S3Request<PutBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<PutBucketLifecycleConfigurationOutput>> {
        lifecycle::put_lifecycle(&self.0, request).await
    }

    async fn get_bucket_tagging(
        &self,
        request: S3Request<GetBucketTaggingInput>,
    ) -> S3Result<S3Response<GetBucketTaggingOutput>> {
        settings::get_tags(&request)
    }

    async fn put_bucket_tagging(
        &self,
        request: S3Request<PutBucketTaggingInput>,
    ) -> S3Result<S3Response<PutBucketTaggingOutput>> {
        settings::put_tags(&self.0, request).await
    }

    async fn delete_bucket_encryption(
        &self,
        request: S3Request<DeleteBucketEncryptionInput>,
    ) -> S3Result<S3Response<DeleteBucketEncryptionOutput>> {
        bucket_encryption::delete_encryption(&self.0, request).await
    }

    async fn get_bucket_replication(
        &self,
        _: S3Request<GetBucketReplicationInput>,
    ) -> S3Result<S3Response<GetBucketReplicationOutput>> {
        Err(Missing::Replication.error())
    }

    async fn get_bucket_website(
        &self,
        _: S3Request<GetBucketWebsiteInput>,
    ) -> S3Result<S3Response<GetBucketWebsiteOutput>> {
        Err(Missing::Website.error())
    }

    async fn get_object_lock_configuration(
        &self,
        request: S3Request<GetObjectLockConfigurationInput>,
    ) -> S3Result<S3Response<GetObjectLockConfigurationOutput>> {
        lock_rule::get_rule(&request)
    }

    async fn put_object_lock_configuration(
        &self,
        request: S3Request<PutObjectLockConfigurationInput>,
    ) -> S3Result<S3Response<PutObjectLockConfigurationOutput>> {
        lock_rule::put_rule(&self.0, request).await
    }

    async fn get_object_retention(
        &self,
        request: S3Request<GetObjectRetentionInput>,
    ) -> S3Result<S3Response<GetObjectRetentionOutput>> {
        retention::get_retention(&self.0, request).await
    }

    async fn put_object_retention(
        &self,
        request: S3Request<PutObjectRetentionInput>,
    ) -> S3Result<S3Response<PutObjectRetentionOutput>> {
        retention::put_retention(&self.0, request).await
    }

    async fn get_object_legal_hold(
        &self,
        request: S3Request<GetObjectLegalHoldInput>,
    ) -> S3Result<S3Response<GetObjectLegalHoldOutput>> {
        retention::get_hold(&self.0, request).await
    }

    async fn put_object_legal_hold(
        &self,
        request: S3Request<PutObjectLegalHoldInput>,
    ) -> S3Result<S3Response<PutObjectLegalHoldOutput>> {
        retention::put_hold(&self.0, request).await
    }

    async fn get_object_tagging(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        tags::get_tags(&self.0, request).await
    }

    async fn put_object_tagging(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        tags::put_tags(&self.0, request).await
    }

    async fn delete_bucket_policy(
        &self,
        request: S3Request<DeleteBucketPolicyInput>,
    ) -> S3Result<S3Response<DeleteBucketPolicyOutput>> {
        settings::delete_policy(&self.0, request).await
    }

    async fn delete_bucket_cors(
        &self,
        request: S3Request<DeleteBucketCorsInput>,
    ) -> S3Result<S3Response<DeleteBucketCorsOutput>> {
        cors::delete_cors(&self.0, request).await
    }

    async fn delete_bucket_lifecycle(
        &self,
        request: S3Request<DeleteBucketLifecycleInput>,
    ) -> S3Result<S3Response<DeleteBucketLifecycleOutput>> {
        lifecycle::delete_lifecycle(&self.0, request).await
    }

    async fn delete_bucket_tagging(
        &self,
        request: S3Request<DeleteBucketTaggingInput>,
    ) -> S3Result<S3Response<DeleteBucketTaggingOutput>> {
        settings::delete_tags(&self.0, request).await
    }

    async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        tags::delete_tags(&self.0, request).await
    }
}
