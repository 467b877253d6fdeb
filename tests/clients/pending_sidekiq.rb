# Adds jobs of Sidekiq that are pending: two scheduled ones, and one that waits for a retry.
# Usage: REDIS_URL
require "sidekiq"
require "sidekiq/job_retry"

class Welcome
  include Sidekiq::Worker
end

Sidekiq.configure_client { |config| config.redis = {url: ARGV[0]} }
Welcome.perform_in(3600, "ä", {"n" => 1})
Welcome.set(queue: "low").perform_in(7200, 2**70, 1.5)
job = {"class" => "Welcome", "args" => [1], "retry" => true, "jid" => "fails"}
begin
  # As Sidekiq's processor calls it, around the job.
  Sidekiq::JobRetry.new.local(Welcome.new, Sidekiq.dump_json(job), "default") { raise "no" }
rescue Sidekiq::JobRetry::Handled
  puts Sidekiq::VERSION
end
