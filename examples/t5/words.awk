# The words of the made articles, shared by pairs.awk and tokenizer.awk.
function pick(list, words, m) { m = split(list, words, " "); return words[1 + int(rand() * m)] }
BEGIN {
    names = "Ada Grace Alan Edsger Barbara Donald Margaret Dennis Frances Kenneth Radia Niklaus"
    verbs = "opened closed sold painted visited cleaned moved measured"
    places = "bridge library museum bakery station market tower garden school harbour"
    days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
    many = "Many Some Few Most"
    people = "people readers visitors neighbours"
    felt = "liked expected missed heard"
}
