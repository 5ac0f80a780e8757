# What files other than the agent's require by name is the environment's, if it has a file of that name.
#
# `RUBYOPT` loads this, and so does RubyGems at its start (`rubygems/defaults/ruby.rb`), before options of the command
# line act. A program that is itself the agent's, named by the verifier, looks up what it likes.

module VerifierGround
  START = Dir.pwd
  GROUND = File.dirname(File.dirname(File.expand_path(__FILE__)))
  SUFFIXES = ["", ".rb", ".so"].freeze

  class << self
    def read
      file = File.open(GROUND + "/changes", "rb")
      @laid, records = file.stat.ctime, file.read.split("\0")
      file.close
      words = records.map { |record| record.split(" ", 2) }
      @added = {}
      words.each { |word, path| @added[path.dup.force_encoding("UTF-8")] = true if word == "added" }
      @known = {}
      words.none? { |word, _| word == "kept" } && !@added.empty?
    rescue SystemCallError
      false
    end

    # Whether the agent added a path, something above it or what it leads to, and nobody wrote it since.
    def agents?(path)
      @known.fetch(path) do
        here = File.expand_path(path)
        real = begin
          File.realpath(here)
        rescue SystemCallError
          here
        end
        @known[path] = (below?(here) || below?(real)) && !new?(here) && !verifiers?(here)
      end
    end

    # The same, or a file that came there while the verifier works, perhaps out of an archive of the agent's.
    def doubtful?(path)
      agents?(path) || unpacked?(path)
    end

    # The path that a name stands for instead of the agent's file: the name itself if there is nothing to settle.
    def settle(feature)
      name = feature.respond_to?(:to_path) ? feature.to_path : feature
      return feature if !name.is_a?(String) || name.start_with?("/", "./", "../", "~") || agents_program?
      first = in_path(name) { |place| agents?(place) } || in_path(name) { true }
      return feature unless first && doubtful?(first)
      own = in_path(name) { |place| !doubtful?(place) } || built_in(name) || in_gems(name)
      return own if own
      raise LoadError, "cannot load such file -- #{name}" if unasked?(name)
      feature
    end

    def agents_program?
      script = File.expand_path($PROGRAM_NAME, START)
      File.file?(script) && agents?(script)
    end

    private

    def below?(path)
      path = path.dup.force_encoding("UTF-8")
      until @added[path]
        parent = File.dirname(path)
        return false if parent == path
        path = parent
      end
      true
    end

    def new?(path)
      found = File.stat(path)
      found.ctime > @laid && found.mtime > @laid
    rescue SystemCallError
      false
    end

    # Whether a file is a copy of one of the verifier's, wherever it is and over whatever file it was made.
    def verifiers?(path)
      return true if File.realpath(path).start_with?("/verifier/")
      found = File.stat(path)
      return false unless found.file? && [found.ctime, File.lstat(path).ctime].max > @laid
      verifiers_files.fetch(found.size, []).any? { |other| File.binread(other) == File.binread(path) }
    rescue SystemCallError
      false
    end

    # The files of the verifier, by size; found when something is in doubt.
    def verifiers_files
      @verifiers_files ||= begin
        files = Dir.glob("/verifier/**/*", File::FNM_DOTMATCH).select { |path| File.file?(path) && File.readable?(path) }
        files.reject { |path| File.zero?(path) }.group_by { |path| File.size(path) }
      end
    end

    def in_path(name)
      suffixes = name.end_with?(".rb", ".so") ? SUFFIXES.first(1) : SUFFIXES.drop(1)
      $LOAD_PATH.each do |folder|
        suffixes.each do |suffix|
          place = File.expand_path(name + suffix, folder.respond_to?(:to_path) ? folder.to_path : folder.to_s)
          return place if File.file?(place) && yield(place)
        end
      end
      nil
    end

    # A library without a file that the interpreter has loaded from the start.
    def built_in(name)
      SUFFIXES.map { |suffix| name + suffix }.find { |known| $LOADED_FEATURES.include?(known) }
    end

    # Activates a gem of the environment that has such a file.
    def in_gems(name)
      return nil unless defined?(Gem::Specification) && Gem.respond_to?(:try_activate)
      spec = Gem::Specification.find_by_path(name)
      return nil if spec.nil? || agents?(spec.loaded_from.to_s)
      Gem.try_activate(name)
      in_path(name) { |place| !doubtful?(place) }
    end

    def unpacked?(path)
      return false if path.start_with?("/verifier/", "/tests/", GROUND + "/")
      return false if File.stat(path).ctime <= @laid || verifiers?(path)
      !(defined?(Gem) && Gem.path.any? { |folder| path.start_with?(folder + "/") })
    rescue SystemCallError
      false
    end

    # Whether a library of the environment asks, in so many words, for what only the agent has. Libraries require what
    # other systems and versions have and do without it where it is missing; a name that was passed to them is a request.
    def unasked?(name)
      place = caller_locations.find { |frame| frame.path !~ /\A<internal:|_require\.rb\z/ && frame.path != __FILE__ }
      path = place && place.absolute_path
      return false if path.nil? || agents?(path) || !libraries.any? { |folder| path.start_with?(folder) }
      line = File.foreach(path).first(place.lineno).last.to_s
      line.include?("'#{name}'") || line.include?("\"#{name}\"")
    rescue SystemCallError
      false
    end

    def libraries
      @libraries ||= begin
        require "rbconfig"
        own = %w[rubylibdir vendordir sitedir archdir].map { |key| RbConfig::CONFIG[key] }
        (own + (defined?(Gem) ? Gem.path : [])).compact.reject { |folder| agents?(folder) }.map { |folder| folder + "/" }
      end
    end
  end

  # Plugins that are found by searching: the agent's do not count.
  module Plugins
    %w[find_files find_latest_files find_files_from_load_path].each do |name|
      define_method(name) do |*words|
        found = super(*words)
        VerifierGround.agents_program? ? found : found.reject { |path| VerifierGround.agents?(path) }
      end
    end
  end

  def self.install
    # Under a name by which programs that look for their caller leave the interpreter's own frames out.
    code = "def require(feature) super(VerifierGround.settle(feature)) end"
    Object.class_eval("#{code}\nprivate :require", "<internal:verifier-ground>")
    Kernel.singleton_class.prepend(Module.new { class_eval(code, "<internal:verifier-ground>") })
    Gem.singleton_class.prepend(Plugins) if defined?(Gem.find_files)
  end

  install if read
end unless defined?(VerifierGround)
