# How a page of docs/guide is followed: every command runs, ends as the page says and prints what the page shows.
#
# In a page, a fence "sh" is run, in one folder per page; "sh exit=N" must end with N. A fence "text" after it is what appears: its lines
# in this order, among others; runs of blanks count as one, and "..." stands for anything. A fence "c file=NAME" (or json, yaml) is
# written to NAME. Sourced after support.bash.
"$fsdp" --version | grep -qw libcrypto || { echo "a build without libcrypto has no launcher"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT FSDP_FLIGHT_DIR
guide=$source_root/docs/guide
export PATH=$build:$PATH OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0

# Pages that need a Slurm, a Kubernetes or a hub are followed by tests of their own.
guide_tests=(llama-under-slurm=deploy/test_guide_slurm t5-on-four-pods=deploy/test_guide_pods)

# fences FILE: its fenced blocks, markers included
fences() { awk '/^```/ { print; inside = !inside; next } inside' "$1"; }

# shows PRINTED SHOWN: the lines of SHOWN are in PRINTED, in order; if not, names the first that is missing
shows()
{
    awk 'function plain(line) { gsub(/[ \t]+/, " ", line); sub(/ $/, "", line); return line }
         function fits(line, pattern,    parts, n, i, at) {
             n = split(pattern, parts, /\.\.\./)
             if (n == 1)
                 return line == pattern
             if (index(line, parts[1]) != 1)
                 return 0
             line = substr(line, length(parts[1]) + 1)
             for (i = 2; i <= n; i++) {
                 at = index(line, parts[i])
                 if (parts[i] != "" && !at)
                     return 0
                 if (parts[i] != "")
                     line = substr(line, at + length(parts[i]))
             }
             return parts[n] == "" || line == ""
         }
         NR == FNR { printed[++n] = plain($0); next }
         /[^ .]/ { wanted = plain($0); while (++k <= n && !fits(printed[k], wanted)); if (k > n) { print "not printed: " $0; exit 1 } }
        ' "$1" "$2"
}

# run_block HEAD FILE: runs the commands in FILE; what they print is in "printed"
run_block()
{
    local code=0 wanted=0
    [[ $1 =~ exit=([0-9]+) ]] && wanted=${BASH_REMATCH[1]}
    timeout 300 bash -eo pipefail "$2" >../printed 2>&1 </dev/null || code=$?
    [[ $code == "$wanted" ]] || fail "exit code $code instead of $wanted of: $(cat "$2")"$'\n'"$(tail -20 ../printed)"
}

# follow PAGE: does what the page says, in a folder of its own
follow()
{
    local head='' line file
    mkdir here && cd here
    ln -s "$source_root/examples" "$source_root/deploy" .
    while IFS= read -r line; do
        if [[ $line != '```'* ]]; then
            printf '%s\n' "$line" >>../block
        elif [[ -z $head ]]; then
            head=${line#'```'} && head=${head:-none} && : >../block
        else
            case $head in
            sh*) run_block "$head" ../block ;;
            text) shows ../printed ../block || fail "$1: a page shows what does not appear; printed was:"$'\n'"$(cat ../printed)" ;;
            *\ file=*) cp ../block "${head#* file=}" ;;
            esac
            head=
        fi
    done < <(fences "$1")
    cd .. && rm -rf here
}

# follow_page NAME: the English page; the Korean one must hold the same commands
follow_page()
{
    local began=$SECONDS
    follow "$guide/en/$1.md"
    echo "$1: $(grep -c '^```sh' "$guide/en/$1.md") blocks of commands, $((SECONDS - began)) s"
}

# start_hub: answers at $HF_ENDPOINT as the Hugging Face hub does, from the folder "repositories"
start_hub()
{
    export HF_HOME=$work/home
    unset HF_HUB_CACHE HUGGINGFACE_HUB_CACHE FSDP_DATA HF_TOKEN
    python3 "$source_root/tests/cli/hub_server.py" repositories "$work/requests" >port 2>server.err &
    for _ in $(seq 300); do [[ -s port ]] && break; sleep 0.1; done
    [[ -s port ]] || fail "the server does not start: $(cat server.err)"
    export HF_ENDPOINT=http://127.0.0.1:$(cat port)
}
